// Elements from data, and a page that changes without losing focus, selection or scroll.
// Text is always a text node. Nothing in the console writes HTML from a string, and the policy of the page forbids it.

const SVG = 'http://www.w3.org/2000/svg';
const SVG_TAGS = new Set(['svg', 'path', 'line', 'text', 'g', 'circle', 'rect', 'title']);

function dispatch(event) {
  const handler = event.currentTarget.handlers?.[event.type];
  if (handler) handler(event);
}

/** h('a', {href: '/', class: 'x', onclick: f}, 'text', [children]) */
export function h(tag, props = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) listen(node, name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function listen(node, type, handler) {
  node.handlers ??= {};
  if (!(type in node.handlers)) node.addEventListener(type, dispatch);
  node.handlers[type] = handler;
}

/** Make the children of a node those that are given, keeping what is there wherever it fits. */
export function render(parent, ...wanted) {
  const nodes = wanted.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (each instanceof Node ? each : document.createTextNode(String(each))));
  morphChildren(parent, nodes);
}

const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute('data-key') : null);

function morphChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (keyOf(child) !== null) keyed.set(keyOf(child), child);
  let place = parent.firstChild;
  for (const next of wanted) {
    const key = keyOf(next);
    let old = key !== null ? keyed.get(key) : place && keyOf(place) === null ? place : null;
    if (old && sameKind(old, next)) {
      if (old !== place) parent.insertBefore(old, place);
      else place = place.nextSibling;
      morph(old, next);
    } else {
      parent.insertBefore(next, place);
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

const sameKind = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName;

function morph(old, next) {
  if (old.nodeType !== 1) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  if (old.hasAttribute('data-own')) return; // a part that takes care of itself
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (old.getAttribute(name) !== value && name !== 'open') old.setAttribute(name, value);
  }
  if (old.handlers || next.handlers) {
    for (const [type, handler] of Object.entries(next.handlers || {})) listen(old, type, handler);
    for (const type of Object.keys(old.handlers || {})) {
      if (!next.handlers?.[type]) old.handlers[type] = null;
    }
  }
  morphChildren(old, [...next.childNodes]);
}

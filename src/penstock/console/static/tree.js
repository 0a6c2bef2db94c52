// A payload: JSON as a tree that opens, other text as it is, bytes as base64. What is long stays folded.
import { h } from './dom.js';
import { bytes, count } from './format.js';

const MOST = 200; // children of one node of the tree
const DEEP = 40;

export function parsed(entry) {
  if (entry.cut || typeof entry.text !== 'string' || !/^\s*[[{]/.test(entry.text)) return undefined;
  try {
    return JSON.parse(entry.text);
  } catch {
    return undefined;
  }
}

/** One or two lines of it, for a list. */
export function glance(entry) {
  const text = entry.text === undefined ? `base64 ${entry.base64}` : entry.text;
  return h('span', { class: 'payload' }, text.slice(0, 400), text.length > 400 || entry.cut ? '…' : '');
}

/** The same, and it opens if there may be more to see. */
export function fold(entry) {
  if (entry.text !== undefined && entry.text.length <= 60 && !entry.text.includes('\n')
      && parsed(entry) === undefined) return glance(entry);
  return h('details', { class: 'fold' }, h('summary', {}, glance(entry)), whole(entry));
}

/** All of it that came. */
export function whole(entry) {
  const value = parsed(entry);
  const note = entry.cut ? h('p', { class: 'soft small' }, `The beginning of ${bytes(entry.size)}.`) : null;
  if (value !== undefined)
    return h('div', { class: 'tree', tabindex: '0', role: 'region', 'aria-label': 'Entry' }, node(null, value, 0),
      note);
  const text = entry.text === undefined ? entry.base64 : entry.text;
  return h('div', {}, entry.text === undefined ? h('p', { class: 'soft small' }, 'Not UTF-8; shown as base64.') : null,
    h('pre', { class: 'payload whole', tabindex: '0' }, text), note);
}

function node(name, value, depth) {
  const label = name === null ? null : [h('span', { class: 'key' }, name), ': '];
  if (value === null || typeof value !== 'object') return h('div', {}, label, leaf(value));
  const pairs = Array.isArray(value) ? value.map((each, at) => [String(at), each]) : Object.entries(value);
  const kind = Array.isArray(value) ? `[ ${count(pairs.length)} ]` : `{ ${count(pairs.length)} }`;
  if (!pairs.length) return h('div', {}, label, Array.isArray(value) ? '[]' : '{}');
  if (depth > DEEP) return h('div', {}, label, '…');
  const list = h('ul', {});
  const fill = () => {
    if (list.childNodes.length) return;
    for (const [key, each] of pairs.slice(0, MOST)) list.append(h('li', {}, node(key, each, depth + 1)));
    if (pairs.length > MOST) list.append(h('li', { class: 'soft' }, `${count(pairs.length - MOST)} more`));
  };
  const open = depth < 2 && pairs.length <= 40;
  if (open) fill();
  return h('details', { open, ontoggle: (event) => event.target.open && fill() },
    h('summary', {}, label, h('span', { class: 'soft' }, kind)), list);
}

function leaf(value) {
  if (typeof value === 'string') return h('span', { class: 'string' }, JSON.stringify(value));
  return h('span', { class: typeof value === 'number' ? 'number' : 'word' }, String(value));
}

// Which page an address shows. Links are ordinary links; a click changes the page without loading it again.
import { h, render } from './dom.js';
import { query } from './api.js';
import { shortcuts } from './shell.js';

const pages = new Map();
const missing = {
  open(root, place) {
    place.title('No such page');
    render(root, h('h1', {}, 'There is no such page'), h('p', {}, h('a', { href: '/' }, 'Overview')));
  },
};
let leave = () => {};

export function page(path, module) {
  pages.set(path, module);
}

export function go(address, { replace = false } = {}) {
  history[replace ? 'replaceState' : 'pushState'](null, '', address);
  open();
}

/** The parameters of the address. A key stays percent-encoded: it is an id. */
function parameters() {
  const found = {};
  for (const part of location.search.slice(1).split('&')) {
    const at = part.indexOf('=');
    if (at <= 0) continue;
    const name = part.slice(0, at), value = part.slice(at + 1);
    try {
      found[name] = name === 'key' || name === 'group' ? value : decodeURIComponent(value.replaceAll('+', ' '));
    } catch { /* a parameter that is no text is none */ }
  }
  return found;
}

export function open() {
  leave();
  const module = pages.get(location.pathname) || missing;
  const main = document.getElementById('main');
  const stops = [];
  const place = {
    path: location.pathname,
    params: parameters(),
    /** Change parameters of the address without a new page in the history of the browser. */
    set(changes) {
      const params = { ...place.params, ...changes };
      for (const [name, value] of Object.entries(params)) if (value === '' || value === null) delete params[name];
      const text = query(params);
      go(location.pathname + (text ? `?${text}` : ''), { replace: true });
    },
    until: (stop) => stops.push(stop),
    title: (text) => { document.title = text ? `${text} · Penstock` : 'Penstock'; },
  };
  leave = () => stops.forEach((stop) => stop());
  document.dispatchEvent(new CustomEvent('page', { detail: module }));
  if (main.dataset.page !== location.pathname) {
    main.dataset.page = location.pathname;
    const title = shortcuts.find(([path]) => path === location.pathname)?.[1];
    render(main,
      h('div', { class: 'page' }, title ? h('h1', {}, title) : null, h('p', { class: 'soft wait' }, 'Reading …')));
    main.scrollTo?.(0, 0);
    window.scrollTo(0, 0);
  }
  module.open(main.firstElementChild, place);
}

export function start() {
  window.addEventListener('popstate', open);
  document.addEventListener('click', (event) => {
    const link = event.target.closest?.('a[href]');
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const to = new URL(link.href);
    if (to.origin !== location.origin || link.hasAttribute('download') || !pages.has(to.pathname) || to.hash) return;
    event.preventDefault();
    go(to.pathname + to.search);
    document.getElementById('main').focus();
  });
  open();
}

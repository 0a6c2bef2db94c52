// The frame around the pages: navigation, the state of the server, the user.
import { logOut, session } from './api.js';
import { h, render } from './dom.js';

const PAGES = [['/', 'Overview', 'o'], ['/streams', 'Streams', 's'], ['/pipelines', 'Pipelines', 'p'],
  ['/clients', 'Clients and locks', 'c'], ['/keys', 'Keys', 'k'], ['/nodes', 'Nodes', 'n']];
const ABOVE = { '/stream': '/streams', '/key': '/keys' };
let away = null;
let seen = null; // when the server last answered

export const shortcuts = PAGES;

export function setAway(text) {
  if (!text) seen = new Date();
  if (away === text) return;
  away = text;
  draw();
}

export function draw() {
  const here = ABOVE[location.pathname] || location.pathname;
  const figures = seen ? ` What you see is from ${seen.toLocaleTimeString('en-GB')}.` : '';
  render(document.getElementById('app'), h('div', { class: away ? 'frame is-away' : 'frame' },
    h('aside', { class: 'side' },
      h('a', { class: 'brand', href: '/' }, h('img', { src: '/static/icon.svg', alt: '' }), 'Penstock'),
      h('nav', { 'aria-label': 'Pages' }, PAGES.map(([path, title]) =>
        h('a', { href: path, 'aria-current': here === path ? 'page' : null }, title))),
      h('div', { class: 'foot small' },
        h('div', { class: 'state place', title: away || 'The server answers' },
          h('span', { class: away ? 'dot bad' : 'dot' }),
          h('span', { class: 'mono' }, session.server),
          h('span', { class: 'hidden' }, away ? 'does not answer' : 'answers')),
        h('div', { class: 'who' }, h('span', { class: 'soft' }, 'User '), session.user, ' ',
          h('button', { class: 'plain', onclick: leave }, 'Log out')),
        h('button', { class: 'plain', onclick: toggleTheme, title: 'Light or dark (t)' }, isDark() ? 'Light' : 'Dark',
          h('span', { class: 'phone-off' }, ' theme')))),
    h('div', {},
      h('div', { class: 'away', role: 'alert', hidden: !away }, away ? `${away} Trying again.${figures}` : ''),
      h('main', { id: 'main', tabindex: '-1', 'data-own': '' }))));
}

async function leave() {
  await logOut().catch(() => {});
  sessionStorage.setItem('left', '1');
  location.assign('/login');
}

const system = matchMedia('(prefers-color-scheme: dark)');
system.addEventListener('change', () => document.getElementById('main')?.dataset.page && draw());

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === 'dark' : system.matches;
}

export function toggleTheme() {
  const theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  localStorage.setItem('theme', theme);
  draw();
}

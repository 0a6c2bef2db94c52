// Clients and locks: who is connected, who waits for what, the LAZY queue, the slow log.
import { act } from '../api.js';
import { confirm } from '../dialog.js';
import { h, render } from '../dom.js';
import { ago, bytes, count, duration, milliseconds, plural, seconds } from '../format.js';
import { live } from '../live.js';
import { LESS, table } from '../table.js';

export default {
  open(root, place) {
    place.title('Clients and locks');
    const { filter = '' } = place.params;
    place.until(live('clients', { filter }, (news) => draw(root, place, filter, news),
      (problem) => render(root, h('h1', {}, 'Clients and locks'), h('p', { class: 'wrong' }, problem.error))));
  },
};

let timer;
function typed(place, text) {
  clearTimeout(timer);
  timer = setTimeout(() => place.set({ filter: text }), 200);
}

const denied = (what) => h('div', { class: 'empty' }, `Your user may not run ${what}.`);

function draw(root, place, filter, news) {
  render(root,
    h('div', { class: 'top' }, h('h1', {}, 'Clients and locks'),
      h('p', { class: 'soft' }, news.clients ? plural(news.count, 'client') : '')),
    h('section', { class: 'card' },
      h('header', {}, h('h2', {}, 'Locked keys'), h('span', { class: 'soft small' }, 'who holds, and who waits')),
      news.locks ? table({
        label: 'Locked keys', rows: news.locks, keyOf: (row) => `${row.database} ${row.name}`, columns: LOCKS,
        empty: 'No key is locked: no command runs in a thread, and none waits for one.',
      }) : denied('LOCKS')),
    h('section', { class: 'card' }, h('header', {}, h('h2', {}, 'LAZY queue')),
      h('div', { class: 'in' }, news.lazy ? lazy(news.lazy) : denied('INFO'))),
    h('section', { class: 'card' },
      h('header', {}, h('h2', {}, 'Clients'),
        h('input',
          { type: 'search', placeholder: 'Filter  ( / )', 'aria-label': 'Filter clients', value: filter,
            oninput: (event) => typed(place, event.target.value) })),
      news.clients
        ? table({ label: 'Clients', rows: news.clients, keyOf: (row) => row.id, columns: CLIENTS, dense: true,
            empty: 'No client matches.' }) : denied('CLIENT LIST'),
      news.clients && news.found > news.clients.length
        ? h('p', { class: 'soft in' }, `${count(news.found - news.clients.length)} more; filter to see them.`) : null),
    h('section', { class: 'card' },
      h('header', {}, h('h2', {}, 'Slow commands'),
        news.slow?.length ? h('button', { onclick: reset }, 'Empty the log') : null),
      news.slow
        ? table({ label: 'Slow commands', rows: news.slow, keyOf: (row) => row.id, columns: SLOW, dense: true,
            empty: 'No command was slow.' }) : denied('SLOWLOG')));
}

const person = (each, at) => [
  at ? ', ' : '', `#${each.id}`, each.name ? ` ${each.name}` : '',
  each.command ? h('span', { class: 'soft' }, ` ${each.command}`) : '',
];
const people = (list) => (list.length ? list.map(person) : '–');

const LOCKS = [
  { title: 'Key', class: 'name', show: (row) => row.name },
  { title: 'Lock', show: (row) => h('span', { class: row.type === 'write' ? 'tag warn' : 'tag' }, row.type) },
  { title: 'For', num: true, show: (row) => duration(row.milliseconds / 1000) },
  { title: 'Held by', class: 'wide',
    show: (row) =>
      (row.holders.length ? people(row.holders) : row.type === 'pending' ? '–' : 'a queued LAZY command') },
  { title: 'Waiting', class: 'wide',
    show: (row) =>
      [people(row.waiting),
        row.waits > row.waiting.length ? ` and ${count(row.waits - row.waiting.length)} more` : ''] },
];

const CLIENTS = [
  { title: 'Id', num: true, ...LESS, show: (row) => row.id },
  { title: 'Name', class: 'name', show: (row) => row.name || h('span', { class: 'zero' }, row.library || '–') },
  { title: 'Address', ...LESS, show: (row) => h('span', { class: 'mono' }, row.address) },
  { title: 'User', ...LESS, show: (row) => row.user },
  { title: 'Last command', show: (row) => [row.command, row.waits ? h('span', { class: 'tag warn' }, 'waits') : null] },
  { title: 'Idle', num: true, show: (row) => seconds(row.idle) },
  { title: 'Connected', num: true, ...LESS, show: (row) => seconds(row.age) },
  { title: 'Memory', num: true, ...LESS, show: (row) => bytes(row.memory) },
  { title: '',
    show: (row) =>
      h('button', { class: 'plain', onclick: () => end(row) }, 'End',
        h('span', { class: 'hidden' }, ` client ${row.id}`)) },
];

const SLOW = [
  { title: 'When', show: (row) => ago(row.time) },
  { title: 'Took', num: true, show: (row) => milliseconds(row.ms) },
  { title: 'Command', class: 'wide mono', show: (row) => row.command },
  { title: 'Client', ...LESS, show: (row) => row.client },
];

function lazy(found) {
  const items =
    [['Queued', count(found.queued)], ['Bytes', bytes(found.bytes)],
      ['Oldest', found.queued ? duration(found.oldest_age_ms / 1000) : '–'],
    ['Ran while idle', count(found.ran_passively)], ['Ran when needed', count(found.ran_actively)],
    ['Failed', count(found.failed)]];
  return [h('dl', { class: 'figures three compact' },
      items.map(([title, value]) => h('div', {}, h('dt', {}, title), h('dd', {}, value)))),
    found.last_error ? h('p', { class: 'wrong' }, `Last error: ${found.last_error}`) : null];
}

function end(row) {
  confirm({
    title: `End the connection of client ${row.id}`,
    body: h('p', {},
      `${row.name || row.address}, user ${row.user}. A program that uses a good client connects again by itself.`),
    button: 'End the connection', danger: true,
    run: () => act('end-client', { id: row.id }),
  });
}

function reset() {
  confirm({ title: 'Empty the slow log', body: h('p', {}, 'Its entries are removed for everybody.'),
      button: 'Empty the log', danger: true, run: () => act('empty-slow-log', {}) });
}

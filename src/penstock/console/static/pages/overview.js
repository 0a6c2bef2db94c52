// The first page: figures of the server, what needs attention, the streams to look at.
import { session } from '../api.js';
import { graph } from '../chart.js';
import { h, render } from '../dom.js';
import { ago, behind, bytes, count, duration, plural, rate, short } from '../format.js';
import { live } from '../live.js';
import { LESS, table } from '../table.js';

export default {
  open(root, place) {
    place.title('Overview');
    place.until(live('overview', {}, (news) => draw(root, news),
        (problem) => render(root, h('p', { class: 'wrong' }, problem.error))));
  },
};

function draw(root, { server, keys, streams, alerts, graph: points, actions, recording }) {
  const since = points.to - points.from < 3600
    ? `last ${Math.ceil((points.to - points.from) / 60)} minutes` : 'last hour';
  render(root,
    h('div', { class: 'top' }, h('h1', {}, 'Overview'),
      server ? h('p', { class: 'soft' },
        `Penstock ${server.version}, `
          + `${server.role === 'slave' ? 'replica' : 'leader'}, up for ${duration(server.uptime)}`) : null),
    h('ul', { class: 'alerts', 'aria-label': 'Alerts' }, alerts.length
      ? alerts.map((alert) =>
          h('li', { class: `alert ${alert.level}` }, alert.text, ' ', h('a', { href: alert.link }, 'Look')))
      : h('li', { class: 'alert good' }, h('span', { class: 'dot' }), 'Nothing needs attention.')),
    figures(server, keys, streams),
    server ? h('div', { class: 'cards' },
      card('Commands a second', since, graph({
        name: 'commands', label: 'Commands a second', low: true, columns: 2, ...points, show: short,
        lines: [{ name: 'commands/s', values: points.commands }] })),
      card('Memory', since, graph({
        name: 'memory', label: 'Memory', low: true, columns: 2, ...points, base: 1024,
        show: (n) => bytes(n).replace('.0 ', ' '),
        lines: [{ name: 'used', values: points.memory, kind: 3 }] })),
    ) : h('p', { class: 'note' }, `The user ${session.user} may not run INFO, so figures of the server are left out.`),
    recording
      ? null : h('p', { class: 'note' },
        'Graphs are recorded only while a page is open: '
          + 'the console has no login of its own. Give it one with PENSTOCK_URL.'),
    h('div', { class: 'cards' },
      section('Furthest behind', '/streams?sort=lag&order=down', 'Streams by lag', streams.behind, 'lag',
        'No group is behind.'),
      section('Busiest', '/streams?sort=rate&order=down', 'Streams by rate', streams.busiest, 'rate',
        'Nothing is being written.')),
    h('section', { class: 'card' },
      h('header', {}, h('h2', {}, 'Recent actions'), h('span', { class: 'soft small' }, 'of this console')),
      table({
        label: 'Recent actions', dense: true, rows: actions, keyOf: (row) => `${row.time} ${row.action}`,
        empty: 'Nothing was changed through this console yet.',
        columns: [
          { title: 'When', show: (row) => ago(row.time) },
          { title: 'User', show: (row) => row.user, class: 'name phone-off', headClass: 'phone-off' },
          { title: 'Action', show: (row) => row.action },
          { title: 'On', show: (row) => row.target, class: 'wide' },
          { title: 'Outcome', show: (row) => row.outcome, class: 'wide' },
        ],
      })));
}

function figures(server, keys, streams) {
  const items = [
    ['Streams', count(streams.count), `${bytes(streams.bytes)} stored`],
    ['Written', `${rate(streams.rate)}/s`, 'messages, all streams'],
    ['Keys', count(keys), 'in this database'],
  ];
  if (server) {
    items.push(
      ['Commands', `${count(server.commands)}/s`, `${rate(server.in_kbps)} kB/s in, ${rate(server.out_kbps)} kB/s out`],
      ['Memory', bytes(server.memory),
        server.memory_most ? `of ${bytes(server.memory_most)}` : `${bytes(server.rss)} resident`],
      ['Clients', count(server.clients), `${count(server.blocked)} waiting in a command`],
      ['Locks', count(server.locked),
        server.lock_waits ? `${plural(server.lock_waits, 'client')} waiting` : 'keys locked'],
      ['LAZY queue', count(server.lazy), 'commands']);
  }
  return h('dl', { class: server ? 'figures' : 'figures three' }, items.map(([title, value, note]) =>
    h('div', {}, h('dt', {}, title), h('dd', {}, value, h('small', {}, note)))));
}

const card = (title, note, ...body) => h('section', { class: 'card' },
  h('header', {}, h('h2', {}, title), h('span', { class: 'soft small' }, note)), h('div', { class: 'in' }, body));

function section(title, link, label, rows, by, empty) {
  return h('section', { class: 'card' },
    h('header', {}, h('h2', {}, title),
      h('a', { href: link, class: 'small', 'aria-label': `All streams, ${label}` }, 'All streams')),
    table({
      label, rows, keyOf: (row) => row.key, dense: true, empty,
      columns: [
        { title: 'Stream', class: 'name', show: (row) => h('a', { href: `/stream?key=${row.key}` }, row.name) },
        { title: 'Messages', num: true, ...LESS, show: (row) => count(row.length) },
        ...(by === 'lag'
            ? [{ title: 'Lag', num: true, show: (row) => count(row.lag) },
              { title: 'Behind by', num: true, show: (row) => behind(row) }]
            : [{ title: 'Written/s', num: true, show: (row) => rate(row.rate) }]),
      ],
    }));
}

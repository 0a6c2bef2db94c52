// All streams: sorted, filtered, a page at a time.
import { h, render } from '../dom.js';
import { behind, bytes, count, plural, rate } from '../format.js';
import { live } from '../live.js';
import { LESS, table } from '../table.js';

const ONLY = [['', 'All'], ['behind', 'Behind'], ['busy', 'Being written'], ['pending', 'With pending messages']];

export default {
  open(root, place) {
    place.title('Streams');
    const { sort = 'name', order = 'up', filter = '', only = '', page = 0 } = place.params;
    let news = null;
    const redraw = () => draw(root, place, { sort, order, filter, only }, news);
    redraw();
    place.until(live('streams', { sort, order, filter, only, page }, (found) => {
      news = found;
      redraw();
    }, (problem) => render(root, h('h1', {}, 'Streams'), h('p', { class: 'wrong' }, problem.error))));
  },
};

let timer;
function typed(place, text) {
  clearTimeout(timer);
  timer = setTimeout(() => place.set({ filter: text, page: '' }), 200);
}

function draw(root, place, { sort, order, filter, only }, news) {
  render(root,
    h('div', { class: 'top' }, h('h1', {}, 'Streams'),
      h('p', { class: 'soft', 'aria-live': 'polite' }, summary(news, filter || only))),
    h('div', { class: 'tools' },
      h('input',
        { type: 'search', placeholder: 'Stream, group, lag>100, size>1mb  ( / )',
          'aria-label': 'Filter by name or figures', class: 'long',
        title: 'Words of names, and bounds of lag, behind, rate, size, length and pending',
        value: filter, oninput: (event) => typed(place, event.target.value) }),
      h('select',
        { 'aria-label': 'Which streams', onchange: (event) => place.set({ only: event.target.value, page: '' }) },
        ONLY.map(([value, title]) => h('option', { value, selected: value === only }, title)))),
    h('section', { class: 'card' }, news ? table({
      label: 'Streams', rows: news.rows, keyOf: (row) => row.key, columns: COLUMNS,
      sort: { by: sort, order, set: (by, to) => place.set({ sort: by, order: to, page: '' }) },
      empty: filter || only ? h('strong', {}, 'No stream matches.') : [
        h('strong', {}, 'There are no streams yet.'), 'A stream is made by the first message that is written to it:',
        h('pre', {}, "echo '{\"page\": \"/\"}' | penstock write clicks --tag ada")],
    }) : h('div', { class: 'empty' }, 'Reading …')),
    news && news.pages > 1 ? pager(place, news) : null);
}

function summary(news, isChosen) {
  if (!news) return '';
  const all = plural(news.count, 'stream');
  return `${isChosen ? `${count(news.found)} of ${all}` : all}${news.complete ? '' : ', still reading'}`;
}

const COLUMNS = [
  { title: 'Stream', sort: 'name', class: 'name', show: (row) => h('a', { href: `/stream?key=${row.key}` }, row.name) },
  { title: 'Messages', sort: 'length', num: true, ...LESS, show: (row) => count(row.length) },
  { title: 'Written/s', sort: 'rate', num: true,
    show: (row) => h('span', { class: row.rate ? null : 'zero' }, rate(row.rate)) },
  { title: 'Size', sort: 'size', num: true, ...LESS, show: (row) => bytes(row.bytes) },
  { title: 'Lag', sort: 'lag', num: true,
    show: (row) => h('span', { class: row.lag ? 'behind' : 'zero' }, count(row.lag)) },
  { title: 'Behind by', sort: 'behind', num: true, show: (row) => behind(row) },
  { title: 'Pending', sort: 'pending', num: true, ...LESS,
    show: (row) => h('span', { class: row.pending ? null : 'zero' }, count(row.pending)) },
  { title: 'Groups', class: 'wide phone-off', headClass: 'phone-off', show: (row) => groups(row) },
];

function groups(row) {
  if (!row.groups.length) return h('span', { class: 'zero' }, '–');
  return [row.groups.map((group, at) =>
        [at ? ', ' : '', group.name, h('span', { class: group.lag ? 'behind' : 'zero' }, ` ${count(group.lag)}`)]),
    row.more_groups ? `, ${count(row.more_groups)} more` : ''];
}

function pager(place, { page, pages }) {
  const step = (to, title) =>
    h('button', { disabled: to < 0 || to >= pages, onclick: () => place.set({ page: to || '' }) }, title);
  return h('nav', { class: 'buttons', 'aria-label': 'Pages of the list' }, step(page - 1, 'Previous'),
    h('span', { class: 'soft' }, `Page ${count(page + 1)} of ${count(pages)}`), step(page + 1, 'Next'));
}

// Tables: columns say how a row is shown; headings sort.
import { h } from './dom.js';

/** A column that phones leave out. */
export const LESS = { class: 'phone-off', headClass: 'phone-off' };

/**
 * columns: [{name, title, num, sort, show(row), class}]; sort: {by, order, set(by, order)}.
 * Rows are told apart by `keyOf`, so that a row keeps its place on the screen and its focus.
 */
export function table({ label, columns, rows, keyOf, sort, empty, dense }) {
  if (!rows.length && empty) return h('div', { class: 'empty' }, empty);
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label },
    h('table', { class: dense ? 'dense' : null },
      h('thead', {}, h('tr', {}, columns.map((column) => heading(column, sort)))),
      h('tbody', {}, rows.map((row) => h('tr', { 'data-key': keyOf(row) }, columns.map((column) =>
        h('td', { class: [column.num && 'num', column.class].filter(Boolean).join(' ') || null },
          column.show(row))))))));
}

function heading(column, sort) {
  const place = { class: [column.num && 'num', column.headClass].filter(Boolean).join(' ') || null, scope: 'col' };
  if (!sort || !column.sort) return h('th', place, column.title);
  const active = sort.by === column.sort;
  if (active) place['aria-sort'] = sort.order === 'up' ? 'ascending' : 'descending';
  const next = active ? (sort.order === 'up' ? 'down' : 'up') : column.num ? 'down' : 'up';
  const arrow = h('span', { class: 'arrow', 'aria-hidden': 'true' }, active ? (sort.order === 'up' ? '↑' : '↓') : '');
  return h('th', place,
    h('button', { type: 'button', onclick: () => sort.set(column.sort, next), 'data-sort': column.sort },
    column.num ? [arrow, column.title] : [column.title, arrow]));
}

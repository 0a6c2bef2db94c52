// Keys by pattern and type.
import { h, render } from '../dom.js';
import { ago, bytes, count, typeName } from '../format.js';
import { once } from '../live.js';
import { table } from '../table.js';

const TYPES = ['string', 'hash', 'list', 'set', 'zset', 'tstream', 'stream'];

export default {
  open(root, place) {
    place.title('Keys');
    const { pattern = '', type = '' } = place.params;
    const state = { rows: [], cursor: null, count: null, looked: false, error: '', busy: false };
    const redraw = () => draw(root, place, { pattern, type }, state, more);
    let over = false;
    place.until(() => { over = true; });
    async function more() {
      state.busy = true;
      redraw();
      try {
        const found = await once('keys', { pattern, type, cursor: state.cursor || '' }, () => over);
        if (over) return;
        const known = new Set(state.rows.map((row) => row.key));
        state.rows.push(...found.rows.filter((row) => !known.has(row.key)));
        state.cursor = found.cursor;
        state.count = found.count;
        state.error = '';
      } catch (error) {
        state.error = error.message;
      }
      state.looked = true;
      state.busy = false;
      if (!over) redraw();
    }
    more();
  },
};

let timer;
function typed(place, text) {
  clearTimeout(timer);
  timer = setTimeout(() => place.set({ pattern: text }), 250);
}

function draw(root, place, { pattern, type }, state, more) {
  render(root,
    h('div', { class: 'top' }, h('h1', {}, 'Keys'),
      h('p', { class: 'soft' }, state.count === null ? '' : `${count(state.count)} in this database`)),
    h('div', { class: 'tools' },
      h('input',
        { type: 'search', placeholder: 'Pattern, such as user:*  ( / )', 'aria-label': 'Pattern', value: pattern,
          oninput: (event) => typed(place, event.target.value) }),
      h('select', { 'aria-label': 'Type', onchange: (event) => place.set({ type: event.target.value }) },
        h('option', { value: '' }, 'All types'),
        TYPES.map((value) => h('option', { value, selected: value === type }, typeName(value))))),
    state.error ? h('p', { class: 'wrong', role: 'alert' }, state.error) : null,
    state.error && !state.rows.length ? null : h('section', { class: 'card' }, state.looked ? table({
      label: 'Keys', rows: state.rows, keyOf: (row) => row.key, columns: COLUMNS, dense: true,
      empty: state.cursor
        ? 'None among those that were looked at.' : pattern || type
        ? h('strong', {}, 'No key matches.') : h('strong', {}, 'The database is empty.'),
    }) : h('div', { class: 'empty' }, 'Reading …')),
    state.cursor ? h('div', { class: 'buttons' }, h('button', { onclick: more, disabled: state.busy }, 'More')) : null);
}

const COLUMNS = [
  { title: 'Key', class: 'name',
    show: (row) =>
      h('a', { href: `${row.type === 'tstream' ? '/stream' : '/key'}?key=${row.key}` }, row.name || '(empty name)') },
  { title: 'Type', show: (row) => typeName(row.type) },
  { title: 'Size', num: true, show: (row) => bytes(row.bytes) },
  { title: 'Expires', num: true,
    show: (row) => (row.expires ? ago(row.expires) : h('span', { class: 'zero' }, 'never')) },
];

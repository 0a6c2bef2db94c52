// One key: what it is, and a part of its value.
import { act } from '../api.js';
import { confirm } from '../dialog.js';
import { h, render } from '../dom.js';
import { ago, bytes, count, plural, typeName, wholeName } from '../format.js';
import { once } from '../live.js';
import { go } from '../router.js';
import { table } from '../table.js';
import { fold, whole } from '../tree.js';

const NAMES = { hash: 'Field', list: 'Index', zset: 'Score', stream: 'Id' };

export default {
  open(root, place) {
    const { key } = place.params;
    let found = null;
    let rows = [];
    let over = false;
    place.until(() => { over = true; });
    async function load(from = '') {
      try {
        const news = await once('key', { key, from }, () => over);
        if (over) return;
        rows = from ? [...rows, ...news.rows] : news.rows || [];
        found = news;
        place.title(found.name);
        draw(root, found, rows, load);
      } catch (error) {
        if (!over)
          render(root, h('h1', {}, 'Key'),
            h('div', { class: 'card empty' }, h('strong', {}, error.message), h('a', { href: '/keys' }, 'All keys')));
      }
    }
    render(root, h('h1', {}, 'Key'), h('p', { class: 'soft wait' }, 'Reading …'));
    load();
  },
};

function draw(root, found, rows, load) {
  const items = [
    ['Type', typeName(found.type), found.encoding || ''],
    ['Size in memory', bytes(found.bytes), ''],
    ['Length', found.length === undefined ? '–' : count(found.length), found.type === 'string' ? 'bytes' : 'elements'],
    ['Expires', found.expires ? ago(found.expires) : 'never', ''],
  ];
  render(root,
    h('div', { class: 'top' }, h('h1', {}, found.name || '(empty name)'), wholeName(found.key, found.name_size),
      h('div', { class: 'buttons' },
      h('button', { onclick: () => expire(found, load) }, 'Set expiry'),
      h('button', { onclick: () => remove(found) }, 'Delete'))),
    h('dl', { class: 'figures' },
      items.map(([title, value, note]) => h('div', {}, h('dt', {}, title), h('dd', {}, value, h('small', {}, note))))),
    found.wrong ? h('p', { class: 'note' }, found.wrong) : null,
    found.type === 'tstream'
      ? h('p', { class: 'note' }, 'This is a stream. ',
        h('a', { href: `/stream?key=${found.key}` }, 'Look at its messages')) : null,
    found.value
      ? h('section', { class: 'card' }, h('header', {}, h('h2', {}, 'Value')),
        h('div', { class: 'in' }, whole(found.value))) : null,
    found.rows
      ? h('section', { class: 'card' },
        h('header', {}, h('h2', {}, 'Elements'),
          h('span', { class: 'soft small' }, `${plural(rows.length, 'element')} shown`)),
      table({
        label: 'Elements', rows, keyOf: (row) => `${rows.indexOf(row)}`, dense: true, empty: 'There are none.',
        columns: [
          ...(NAMES[found.type] ? [{ title: NAMES[found.type], class: 'name', show: (row) => row.name }] : []),
          { title: 'Value', class: 'wide', show: (row) => fold(row.value) },
          { title: 'Size', num: true, show: (row) => bytes(row.value.size) },
        ],
      })) : null,
    found.more ? h('div', { class: 'buttons' }, h('button', { onclick: () => load(found.more) }, 'More')) : null);
}

function remove(found) {
  confirm({
    title: `Delete ${found.name}`, danger: true, button: 'Delete the key',
    body: h('p', {}, `The key and its value (${bytes(found.bytes)}) are removed. This cannot be undone.`),
    run: () => act('delete-key', { key: found.key }),
  }).then((done) => done && go('/keys'));
}

function expire(found, load) {
  confirm({
    title: `Expiry of ${found.name}`, button: 'Set',
    body: h('label', { class: 'field' }, 'Seconds from now; empty: never',
      h('input', { name: 'seconds', type: 'number', min: 1 })),
    run: (form) => act('expire-key', { key: found.key, seconds: form.get('seconds') || 0 }),
  }).then((done) => done && load());
}

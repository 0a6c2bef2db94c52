// Dead letters: where they came from, why, and putting them back.
import { act } from '../api.js';
import { confirm } from '../dialog.js';
import { h, render } from '../dom.js';
import { ago, count, plural } from '../format.js';
import { once } from '../live.js';
import { table } from '../table.js';
import { fold } from '../tree.js';

export default {
  open(body, place, key) {
    let params = {};
    let seen = null;
    let over = false;
    const load = async (change) => {
      if (change) params = change;
      try {
        const found = await once('letters', { key, ...params }, () => over);
        if (!over) draw(found);
      } catch (error) {
        if (!over) render(body, h('p', { class: 'wrong' }, error.message));
      }
    };
    const draw = (found) => render(body,
      h('div', { class: 'top' },
        h('p', { class: 'soft' },
          found.left ? `${plural(found.left, 'letter')} not put back yet.` : 'All letters were put back.'),
        h('button', { class: 'main', disabled: !found.left, onclick: () => all(key, found.left, load) },
          'Put all back')),
      h('section', { class: 'card' }, table({
        label: 'Dead letters', rows: found.rows, keyOf: (row) => row.offset, columns: COLUMNS(key, load),
        empty: [h('strong', {}, 'No letters are left here.'),
          found.older !== null
            ? 'Those that were put back are further up.' : 'Messages that a group gives up come here.'],
      })),
      h('div', { class: 'buttons' },
        h('button', { disabled: found.older === null, onclick: () => load({ from: found.older }) }, 'Older'),
        h('button', { disabled: found.newer === null, onclick: () => load({ from: found.newer }) }, 'Newer')));
    load();
    return {
      stop: () => { over = true; },
      update: (news) => {
        const now = `${news.last} ${news.groups.map((group) => group.position)}`;
        if (seen !== null && seen !== now) load();
        seen = now;
      },
    };
  },
};

const COLUMNS = (key, load) => [
  { title: 'Letter', num: true, show: (row) => count(row.offset) },
  { title: 'When', show: (row) => ago(row.time) },
  { title: 'From', class: 'name',
    show: (row) =>
      (row.stream
          ? [h('a', { href: `/stream?key=${row.stream.key}&tab=messages${row.at ? `&from=${row.at}` : ''}` },
              row.stream.name), row.at ? ` ${count(row.at)}` : ''] : '–') },
  { title: 'Why', class: 'wide',
    show: (row) =>
      (row.wrong
          ? h('span', { class: 'soft' }, `Not a letter: ${row.wrong}`)
          : [row.why,
            h('div', { class: 'soft small' },
              [row.group, row.attempts ? plural(row.attempts, 'attempt') : null].filter(Boolean).join(', '))]) },
  { title: 'Entry', class: 'wide', show: (row) => fold(row.entry) },
  { title: '', show: (row) => (row.wrong ? null : row.back ? h('span', { class: 'tag good' }, 'put back')
    : h('button', { class: 'plain', onclick: () => one(key, row, load) }, 'Put back',
      h('span', { class: 'hidden' }, ` letter ${row.offset}`))) },
];

function one(key, row, load) {
  confirm({
    title: `Put letter ${count(row.offset)} back`,
    body: h('p', {},
      `Its message is appended to the stream ${row.stream.name}, with its tag, `
        + 'and its readers get it as a new one. The letter stays.'),
    button: 'Put back',
    run: () => act('put-back', { key, offset: row.offset }),
  }).then((done) => done && load());
}

function all(key, left, load) {
  confirm({
    title: 'Put all letters back',
    body: [
      h('p', {},
        `The messages of ${plural(left, 'letter')} are appended to the streams they came from, each once. `
          + 'The letters stay. A message that is still bad becomes a new letter.'),
      h('label', {}, h('input', { type: 'checkbox', name: 'skip', value: 'yes' }),
        ' Pass over letters that cannot be put back')],
    button: 'Put all back',
    run: (form) => act('put-back', { key, skip: form.get('skip') || 'no' }),
  }).then(() => load({}));
}

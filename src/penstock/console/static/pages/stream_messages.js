// Messages: newest first, by offset, time or tag; a live tail; a form to write one.
import { act, query, session } from '../api.js';
import { confirm } from '../dialog.js';
import { h, render } from '../dom.js';
import { absolute, ago, bytes, count } from '../format.js';
import { follow, once } from '../live.js';
import { glance, parsed, whole } from '../tree.js';

const TAILED = 200;

export default {
  open(body, place, key) {
    const state = { key, rows: null, newer: null, older: null, first: 0, last: 0, by: place.params.by || 'offset',
      from: place.params.from || '', tag: place.params.tag || '', open: new Map(), tailing: null, passed: 0,
      error: '', fields: [],
      isTable: localStorage.getItem('messages') !== 'entries', over: false };
    const redraw = () => draw(body, place, state, { load, toggle, tail, choose });
    function choose(isTable) {
      state.isTable = isTable;
      localStorage.setItem('messages', isTable ? 'table' : 'entries');
      redraw();
    }

    async function load(params = {}) {
      stop();
      state.error = '';
      try {
        Object.assign(state, await once('messages', { key, tag: state.tag, ...params }, () => state.over));
      } catch (error) {
        state.error = error.message;
        state.rows ||= [];
      }
      if (!state.over) redraw();
    }
    async function toggle(row) {
      if (state.open.has(row.offset)) state.open.delete(row.offset);
      else {
        state.open.set(row.offset, row.entry);
        if (row.entry.cut) {
          once('message', { key, offset: row.offset }, () => state.over).then((found) => {
            if (state.open.has(row.offset)) state.open.set(row.offset, found.entry);
            redraw();
          }).catch((error) => { state.error = error.message; redraw(); });
        }
      }
      redraw();
    }
    function tail() {
      if (state.tailing) {
        stop();
        redraw();
        return;
      }
      state.rows = [];
      state.newer = state.older = null;
      state.passed = 0;
      state.tailing = follow('stream/tail', { key }, {
        begin: redraw,
        messages: (news) => {
          const rows = news.rows.filter((row) => !state.tag || row.tag === state.tag).reverse();
          state.rows = [...rows, ...state.rows].slice(0, TAILED);
          state.passed += news.passed;
          redraw();
        },
        wrong: (problem) => { state.error = problem.error; stop(); redraw(); },
      });
      redraw();
    }
    function stop() {
      state.tailing?.();
      state.tailing = null;
    }
    load(state.from && state.by === 'time' ? { time: Date.parse(state.from) } : state.from ? { from: state.from } : {});
    return { stop: () => { state.over = true; stop(); } };
  },
};

function draw(body, place, state, { load, toggle, tail, choose }) {
  const search = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    place.set({ by: form.get('by') === 'time' ? 'time' : '', from: form.get('from').trim(), tag: form.get('tag') });
  };
  render(body,
    h('div', { class: 'top' },
      h('form', { class: 'tools', onsubmit: search },
        h('select', { name: 'by', 'aria-label': 'Look up by' },
          h('option', { value: 'offset', selected: state.by !== 'time' }, 'From offset'),
          h('option', { value: 'time', selected: state.by === 'time' }, 'From time')),
        h('input',
          { name: 'from', value: state.from, placeholder: state.by === 'time' ? '2026-05-01 12:30' : 'newest',
            'aria-label': 'Offset or time', size: 14 }),
        h('input', { name: 'tag', value: state.tag, placeholder: 'any tag', 'aria-label': 'Tag', size: 10 }),
        h('button', {}, 'Look up')),
      h('div', { class: 'buttons' },
        state.fields.length
          ? h('select',
            { 'aria-label': 'Show entries as', onchange: (event) => choose(event.target.value === 'table') },
          h('option', { value: 'table', selected: state.isTable }, 'Table'),
          h('option', { value: 'entries', selected: !state.isTable }, 'JSON')) : null,
        h('button',
          { onclick: tail, 'aria-pressed': state.tailing ? 'true' : 'false', class: state.tailing ? 'main' : null },
          state.tailing ? 'Stop following' : 'Follow'),
        h('button', { onclick: () => download(state) }, 'Download'),
        h('button', { onclick: () => write(state, load) }, 'Write a message'))),
    state.error ? h('p', { class: 'wrong', role: 'alert' }, state.error) : null,
    session.masked.length
      ? h('p', { class: 'note' },
        session.masked.includes('*') ? 'Payloads are hidden.' : `Hidden fields: ${session.masked.join(', ')}.`) : null,
    state.tailing
      ? h('p', { class: 'soft', 'aria-live': 'polite' }, h('span', { class: 'dot' }),
        ' Following. New messages appear at the top.',
      state.passed ? ` ${count(state.passed)} came too fast to be shown.` : '') : null,
    h('section', { class: 'card' }, list(state, toggle)),
    state.tailing ? null : h('div', { class: 'buttons' },
      h('button', { disabled: state.newer === null, onclick: () => load({ from: state.newer }) }, 'Newer'),
      h('button', { disabled: state.older === null, onclick: () => load({ before: state.older }) }, 'Older'),
      h('button', { disabled: state.newer === null, onclick: () => load() }, 'Newest')));
}

function list(state, toggle) {
  if (!state.rows) return h('div', { class: 'empty' }, 'Reading …');
  if (!state.rows.length) {
    return h('div', { class: 'empty' }, state.tailing ? 'Waiting for messages …'
      : state.tag && state.older !== null
        ? [h('strong', {}, 'None among those that were looked at.'), '“Older” looks further.']
        : h('strong', {}, 'There are no messages here.'));
  }
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Messages' },
    h('table', { class: 'messages' },
    h('thead', {},
      h('tr', {}, h('th', { class: 'num', scope: 'col' }, 'Offset'),
        h('th', { class: 'phone-off', scope: 'col' }, 'Written'),
      h('th', { scope: 'col' }, 'Tag'), columns(state).map((name) => h('th', { scope: 'col' }, name)),
      h('th', { class: 'num phone-off', scope: 'col' }, 'Size'))),
    h('tbody', {}, state.rows.map((row) => line(state, row, toggle)))));
}

/** The fields of the schema are columns, if there is one. */
const columns = (state) => (state.isTable && state.fields.length ? state.fields : ['Entry']);

function cells(state, row) {
  const value = state.isTable && state.fields.length ? parsed(row.entry) : undefined;
  if (value === undefined || Array.isArray(value))
    return h('td', { class: 'wide', colspan: columns(state).length }, glance(row.entry));
  return state.fields.map((name) =>
      h('td', { class: 'field' }, field(Object.hasOwn(value, name) ? value[name] : undefined)));
}

function field(value) {
  if (value === undefined || value === null) return h('span', { class: 'zero' }, value === null ? 'null' : '–');
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return text.length > 120 ? `${text.slice(0, 120)}…` : text;
}

function line(state, row, toggle) {
  const opened = state.open.get(row.offset);
  return h('tr', { 'data-key': row.offset, class: opened ? 'open' : null },
    h('td', { class: 'num' },
      h('button', { class: 'plain', onclick: () => toggle(row), 'aria-expanded': opened ? 'true' : 'false',
      'aria-label': `Message ${row.offset}` }, count(row.offset))),
    h('td', { class: 'phone-off', title: absolute(row.time) }, ago(row.time)),
    h('td', { class: 'name' }, row.tag || h('span', { class: 'zero' }, '–')),
    opened ? h('td', { class: 'wide', colspan: columns(state).length }, whole(opened),
      h('p', { class: 'small' },
        h('a', { href: `/api/stream/raw?${query({ key: state.key, offset: row.offset })}`, download: '' },
          'Download this entry'))) : cells(state, row),
    h('td', { class: 'num phone-off' }, bytes(row.entry.size)));
}

function download(state) {
  confirm({
    title: 'Download messages',
    body: [
      h('p', { class: 'soft' }, 'At most 100,000 messages, from the offset that you name.'),
      h('div', { class: 'row' },
        h('label', { class: 'field' }, 'From offset',
          h('input', { name: 'from', type: 'number', min: 1, value: state.first || 1 })),
        h('label', { class: 'field' }, 'To offset',
          h('input', { name: 'to', type: 'number', min: 1, value: state.last || 1 })),
        h('label', { class: 'field' }, 'Format',
          h('select', { name: 'format' }, h('option', { value: 'csv' }, 'CSV'),
            h('option', { value: 'parquet' }, 'Parquet'))))],
    button: 'Download',
    run: async (form) => {
      const asked = { key: state.key, from: form.get('from'), to: form.get('to'), format: form.get('format') };
      const address = `/api/stream/download?${query(asked)}`;
      const link = h('a', { href: address, download: '' });
      document.body.append(link);
      link.click();
      link.remove();
    },
  });
}

function write(state, load) {
  let note = '';
  confirm({
    title: 'Write a message',
    body: (refresh) => [
      h('label', { class: 'field' }, 'Tag', h('input', { name: 'tag', autocomplete: 'off' })),
      h('label', { class: 'field' }, 'Entry', h('textarea', { name: 'entry', spellcheck: 'false', oninput: (event) => {
        note = parsed({ text: event.target.value }) === undefined ? 'Not JSON; it is written as text.' : 'JSON.';
        refresh();
      } })),
      h('p', { class: 'soft small', 'aria-live': 'polite' }, note || 'Any text; usually a JSON object.'),
      h('label', { class: 'field' }, 'Groups get it after (milliseconds)',
        h('input', { name: 'delay', type: 'number', min: 0, value: 0 }))],
    button: 'Write',
    run: async (form) =>
      act('write', { key: state.key, tag: form.get('tag'), entry: form.get('entry'), delay: form.get('delay') || 0 }),
  }).then((done) => done && !state.tailing && load());
}

// Groups: how far each is, what it holds, and moving it with a look at what that means.
import { act, view } from '../api.js';
import { confirm } from '../dialog.js';
import { h, render } from '../dom.js';
import { ago, behind, count, duration, plural, rate, wholeName } from '../format.js';
import { LESS, table } from '../table.js';

export default {
  open(body, place, key) {
    return { update: (news) => draw(body, key, news) };
  },
};

function draw(body, key, news) {
  render(body,
    h('div', { class: 'top' },
      h('p', { class: 'soft' }, news.more_groups ? `The ${count(news.groups.length)} with the largest lag.` : ''),
      h('button', { onclick: () => move(key, null) }, 'New group')),
    h('section', { class: 'card' }, table({
      label: 'Groups', rows: news.groups, keyOf: (row) => row.id, columns: COLUMNS(key),
      empty: [h('strong', {}, 'No group reads this stream.'), 'A group begins with the first read of a member:',
        h('pre', {}, `penstock tail ${/^[\w:.-]+$/.test(news.name) ? news.name : 'STREAM'} --group billing`)],
    })),
    news.groups.filter((group) => group.consumers.length).map((group) =>
      h('section', { class: 'card', 'data-key': `members-${group.id}` },
        h('header', {}, h('h2', {}, `Members of ${group.name}`)),
        table({
          label: `Members of ${group.name}`, rows: group.consumers, keyOf: (row) => row.name, dense: true,
          columns: [
            { title: 'Name', class: 'name', show: (row) => row.name },
            { title: 'Pending', num: true, show: (row) => count(row.pending) },
            { title: 'Last seen', num: true, show: (row) => `${duration(row.idle / 1000)} ago` },
          ],
        }))));
}

const COLUMNS = (key) => [
  { title: 'Group', class: 'name', show: (row) => [row.name, ' ', wholeName(row.id, row.name_size)] },
  { title: 'Position', num: true, ...LESS, show: (row) => count(row.position) },
  { title: 'Lag', num: true, show: (row) => h('span', { class: row.lag ? 'behind' : 'zero' }, count(row.lag)) },
  { title: 'Behind by', num: true, show: (row) => behind(row) },
  { title: 'Read/s', num: true, ...LESS, show: (row) => rate(row.rate) },
  { title: 'Pending', num: true, ...LESS,
    show: (row) => h('span', { class: row.pending ? null : 'zero' }, count(row.pending)) },
  { title: 'Attempts', num: true, ...LESS, show: (row) => (row.attempts ? `up to ${count(row.attempts)}` : '–') },
  { title: 'Oldest pending', num: true, ...LESS, show: (row) => (row.oldest ? ago(row.oldest) : '–') },
  { title: 'Lost', num: true, ...LESS,
    show: (row) => h('span', { class: row.lost ? 'behind' : 'zero' }, count(row.lost)) },
  { title: '', show: (row) => h('div', { class: 'buttons' },
    h('button', { class: 'plain', onclick: () => move(key, row) }, 'Move',
      h('span', { class: 'hidden' }, ` ${row.name}`)),
    h('button', { class: 'plain', onclick: () => remove(key, row) }, 'Delete',
      h('span', { class: 'hidden' }, ` ${row.name}`))) },
];

function move(key, group) {
  let said = '';
  let latest = 0;
  let draw = () => {};
  const values = { to: 'offset', offset: group ? group.position : 1, time: '', name: '' };
  const params = () => {
    const id = group ? group.id : encodeURIComponent(values.name);
    const time = Date.parse(values.time);
    return { key, group: id, to: values.to, ...(values.to === 'offset' ? { offset: values.offset } : {}),
      ...(values.to === 'time' ? { time: Number.isNaN(time) ? '' : time } : {}) };
  };
  async function look() {
    const turn = (latest += 1);
    let text;
    try {
      text = (group || values.name) ? sentence(await view('move', params())) : 'Give the group a name.';
    } catch (error) {
      text = error.message;
    }
    if (turn === latest) {
      said = text;
      draw();
    }
  }
  const change = (name) => (event) => {
    values[name] = event.target.value;
    draw();
    look();
  };
  confirm({
    title: group ? `Move ${group.name}` : 'New group',
    body: (refresh) => {
      draw = refresh;
      return [
        group ? null
          : h('label', { class: 'field' }, 'Name',
            h('input', { name: 'name', oninput: change('name'), autocomplete: 'off' })),
        h('div', { class: 'row' },
          h('label', { class: 'field' }, 'Go on with', h('select', { name: 'to', onchange: change('to') },
            [['offset', 'an offset'], ['time', 'a time'], ['first', 'the first message'],
              ['end', 'new messages only']].map(([value, title]) =>
              h('option', { value, selected: value === values.to }, title)))),
          values.to === 'offset'
            ? h('label', { class: 'field', 'data-key': 'offset' }, 'Offset',
              h('input', { name: 'offset', type: 'number', min: 1, value: values.offset, oninput: change('offset') }))
            : null,
          values.to === 'time'
            ? h('label', { class: 'field', 'data-key': 'time' }, 'Time',
              h('input', { name: 'time', type: 'datetime-local', step: 1, oninput: change('time') })) : null),
        h('p', { class: 'note', id: 'preview', 'aria-live': 'polite' }, said || '…')];
    },
    button: group ? 'Move the group' : 'Make the group',
    run: () => act('move-group', { ...params(), key, group: group ? group.id : encodeURIComponent(values.name) }),
  });
  look();
}

function sentence(found) {
  const parts = [];
  if (!found.exists) parts.push(`The new group begins at offset ${count(found.offset)}.`);
  else if (found.again) {
    const are = found.again === 1 ? 'is' : 'are';
    parts.push(`${plural(found.again, 'message')} from offset ${count(found.offset)} on ${are} delivered again.`);
  } else if (found.passed) {
    const are = found.passed === 1 ? 'is' : 'are';
    parts.push(`${plural(found.passed, 'message')} ${are} passed over and never delivered to this group.`);
  }
  else parts.push('Nothing changes: the group is there.');
  if (found.evicted)
    parts.push(`${plural(found.evicted, 'message')} from there on ${found.evicted === 1 ? 'is' : 'are'} gone already.`);
  parts.push(`The lag is ${count(found.lag_then)} then${found.lag === null ? '' : `; it is ${count(found.lag)} now`}.`);
  if (found.pending)
    parts.push(`${plural(found.pending, 'pending message')} ${found.pending === 1 ? 'stays' : 'stay'} pending.`);
  return parts.join(' ');
}

function remove(key, group) {
  confirm({
    title: `Delete ${group.name}`,
    body: h('p', {},
      `Its position and ${plural(group.pending, 'pending message')} are forgotten. `
        + 'Members that wait get an error; one that reads again begins a new group.'),
    button: 'Delete the group', danger: true,
    run: () => act('delete-group', { key, group: group.id }),
  });
}

// What the stream keeps, with the effect of another retention; its schema.
import { act, view } from '../api.js';
import { confirm } from '../dialog.js';
import { h, render } from '../dom.js';
import { bytes, count, duration, plural } from '../format.js';

export default {
  open(body, place, key) {
    return { update: (news) => draw(body, key, news) };
  },
};

function draw(body, key, news) {
  const { count: messages, age, bytes: size, compact } = news.retention;
  const rules = [
    messages ? `the newest ${plural(messages, 'message')}` : null,
    age ? `what is younger than ${duration(age / 1000)}` : null,
    size ? `the newest ${bytes(size)}` : null,
    compact ? 'of each tag the newest message only' : null,
  ].filter(Boolean);
  render(body,
    h('section', { class: 'card' },
      h('header', {}, h('h2', {}, 'Retention'), h('button', { onclick: () => change(key, news) }, 'Change')),
      h('div', { class: 'in' },
        h('p', {},
          rules.length
            ? `The stream keeps ${rules.join(', and ')}. What is older is removed.` : 'The stream keeps everything.'))),
    h('section', { class: 'card' },
      h('header', {}, h('h2', {}, 'Schema'),
        news.schema ? h('span', { class: 'soft small' }, `version ${news.schema.version ?? ''}`) : null),
      h('div', { class: 'in' }, news.schema
        ? [h('pre', { class: 'payload whole' }, news.schema.fields),
          h('p', { class: 'soft small' }, `CHECK ${news.schema.check ?? 'off'}`)]
        : h('p', { class: 'soft' }, 'No schema is declared. TSCHEMA SET declares one.'))),
    h('section', { class: 'card' }, h('header', {}, h('h2', {}, 'Storage')),
      h('div', { class: 'in' }, h('dl', { class: 'pairs' },
      [['In memory', bytes(news.bytes)],
        ['In files',
          `${bytes(news.history.bytes)}, ${plural(news.history.files, 'file')}, `
            + plural(news.history.length, 'message')],
        ['Uncompressed', bytes(news.raw)], ['Producers', count(news.producers)],
        ['Staged', plural(news.stages, 'token')], ['Delayed', plural(news.delayed, 'message')]]
        .map(([title, value]) => [h('dt', {}, title), h('dd', {}, value)])))));
}

function change(key, { retention }) {
  const values =
    { count: retention.count, age: retention.age / 1000, bytes: retention.bytes,
      compact: retention.compact ? 'yes' : 'no' };
  let said = '';
  let latest = 0;
  let redraw = () => {};
  const params = () =>
    ({ count: Math.round(values.count) || 0, age: Math.round(values.age * 1000) || 0,
        bytes: Math.round(values.bytes) || 0 });
  async function look() {
    const turn = (latest += 1);
    let text;
    try {
      text = sentence(await view('retention', { key, ...params() }));
    } catch (error) {
      text = error.message;
    }
    if (turn === latest) {
      said = text;
      redraw();
    }
  }
  const set = (name) => (event) => {
    values[name] = event.target.value;
    look();
  };
  const field = (name, title) =>
    h('label', { class: 'field' }, title,
      h('input', { name, type: 'number', min: 0, value: values[name], oninput: set(name) }));
  confirm({
    title: 'Change retention',
    body: (refresh) => {
      redraw = refresh;
      return [
        h('p', { class: 'soft' }, '0 is no limit.'),
        h('div', { class: 'row' }, field('count', 'Messages'), field('age', 'Age in seconds'), field('bytes', 'Bytes')),
        h('label', { class: 'field' }, 'Of each tag', h('select', { name: 'compact', onchange: set('compact') },
          [['no', 'all messages'],
            ['yes', 'the newest message only']].map(([value, title]) =>
              h('option', { value, selected: value === values.compact }, title)))),
        h('p', { class: 'note', id: 'preview', 'aria-live': 'polite' }, said || '…')];
    },
    button: 'Change', danger: true,
    run: () => act('retain', { key, ...params(), compact: values.compact }),
  });
  look();
}

function sentence({ removes, about, length, unread }) {
  if (!removes) return `Nothing is removed now. The stream has ${plural(length, 'message')}.`;
  const early = `, some before ${unread.join(', ')} ${unread.length === 1 ? 'has' : 'have'} read them`;
  const removed = `${about ? 'About ' : ''}${plural(removes, 'message')} of ${count(length)} would be removed now`;
  return `${removed}${unread.length ? early : ''}. This cannot be undone.`;
}

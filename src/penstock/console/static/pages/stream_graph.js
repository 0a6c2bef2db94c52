// Writes, reads and lag over time.
import { view } from '../api.js';
import { graph } from '../chart.js';
import { h, render } from '../dom.js';
import { span, short } from '../format.js';

const RANGES = [[900, '15 min'], [3600, '1 h'], [21600, '6 h'], [86400, '1 d'], [604800, '7 d'], [1209600, '14 d']];
const EVERY = 5000;

export default {
  open(body, place, key) {
    const chosen = Number(place.params.seconds);
    let timer;
    let over = false;
    const look = async () => {
      try {
        const found = await view('graph', { key, seconds: chosen || 3600 });
        // A stream that is young shows more in a quarter of an hour.
        const seconds = chosen || (found.times[0] >= found.to - 900 ? 900 : 3600);
        if (!over) draw(body, key, seconds, { ...found, from: found.to - seconds });
      } catch { /* the page says so already */ }
      if (!over) timer = setTimeout(look, EVERY);
    };
    look();
    return { stop: () => { over = true; clearTimeout(timer); } };
  },
};

function draw(body, key, seconds, found) {
  const shared = { from: found.from, to: found.to, times: found.times };
  const lines = [{ name: 'written', values: found.written, kind: 1 },
    ...found.groups.map((group, at) => ({ name: `read by ${group.name}`, values: group.read, kind: (at % 5) + 2 }))];
  const of = (what) => found.groups.map((group, at) => ({ name: group.name, values: group[what], kind: (at % 5) + 2 }));
  render(body,
    h('div', { class: 'buttons', role: 'group', 'aria-label': 'Time' }, RANGES.map(([value, title]) =>
      h('a', { class: 'button', href: `/stream?key=${key}&tab=graph&seconds=${value}`,
          'aria-current': value === seconds ? 'true' : null }, title))),
    h('section', { class: 'card' }, h('header', {}, h('h2', {}, 'Messages a second')),
      h('div', { class: 'in' },
        graph({ ...shared, name: 'rates', label: 'Messages written and read a second', lines, show: short }))),
    found.groups.length ? h('div', { class: 'cards' },
      h('section', { class: 'card' },
        h('header', {}, h('h2', {}, 'Lag'), h('span', { class: 'soft small' }, 'messages that a group has not read')),
        h('div', { class: 'in' },
          graph({ ...shared, name: 'lags', label: 'Lag of each group in messages', lines: of('lag'), show: short,
              columns: 2 }))),
      h('section', { class: 'card' },
        h('header', {}, h('h2', {}, 'Behind by'),
          h('span', { class: 'soft small' }, 'age of the next message of a group')),
        h('div', { class: 'in' },
          graph({ ...shared, name: 'ages', label: 'Lag of each group in time', lines: of('behind'), show: span,
              base: 60, columns: 2 }))))
      : h('section', { class: 'card' }, h('header', {}, h('h2', {}, 'Lag')),
        h('div', { class: 'empty' }, 'No group reads this stream.')));
}

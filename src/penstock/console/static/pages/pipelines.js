// Projects that `penstock run` runs.
import { h, render } from '../dom.js';
import { ago, count, rate } from '../format.js';
import { live } from '../live.js';
import { table } from '../table.js';

const STATES = { running: 'good', done: '', stopped: '', failed: 'bad', silent: 'warn' };

export default {
  open(root, place) {
    place.title('Pipelines');
    place.until(live('pipelines', {}, (news) => draw(root, news),
        (problem) => render(root, h('h1', {}, 'Pipelines'), h('p', { class: 'wrong' }, problem.error))));
  },
};

function draw(root, { rows, more }) {
  render(root,
    h('div', { class: 'top' }, h('h1', {}, 'Pipelines'),
      more ? h('p', { class: 'soft' }, 'There are more than are shown here.') : null),
    rows.length ? rows.map((run) => h('section', { class: 'card', 'data-key': run.id },
      h('header', {}, h('div', {}, h('h2', {}, run.name), h('p', { class: 'soft small' }, run.place)),
        h('p', { class: 'small' }, h('span', { class: `tag ${STATES[run.state] ?? ''}` }, run.state), ' ',
          h('span', { class: 'soft' }, 'began ', ago(run.started), ', last heard ', ago(run.updated)))),
      run.state === 'silent'
        ? h('p', { class: 'alert in' }, 'This run says nothing any more: it was killed, or its machine is gone.')
        : null,
      run.error
        ? h('div', { class: 'in' }, h('h3', {}, 'Last error'),
          h('pre', { class: 'payload whole wrong', tabindex: '0' }, run.error)) : null,
      table({
        label: `Flows of ${run.name}`, rows: run.flows, keyOf: (row) => row.name, dense: true,
        empty: 'No flow has begun yet.',
        columns: [
          { title: 'Flow', class: 'name', show: (row) => row.name },
          { title: 'State',
            show: (row) =>
              h('span', { class: row.state === 'FAILED' ? 'tag bad' : 'tag' }, String(row.state).toLowerCase()) },
          { title: 'Rows', num: true, show: (row) => count(row.rows) },
          { title: 'Rows/s', num: true, show: (row) => rate(row.rate) },
          { title: 'Lag', num: true, show: (row) => h('span', { class: row.lag ? 'behind' : 'zero' }, count(row.lag)) },
        ],
      })))
      : h('div', { class: 'card empty' }, h('strong', {}, 'No pipeline has run on this server in the last week.'),
        'A project that reads this server shows its flows here:',
        h('pre', {}, 'penstock init clicks\npenstock run clicks --continuous')));
}

// The server, its replicas, and what is on disk.
import { h, render } from '../dom.js';
import { ago, bytes, count, duration } from '../format.js';
import { live } from '../live.js';
import { table } from '../table.js';

export default {
  open(root, place) {
    place.title('Nodes');
    place.until(live('nodes', {}, (news) => draw(root, news),
        (problem) => render(root, h('h1', {}, 'Nodes'), h('p', { class: 'wrong' }, problem.error))));
  },
};

const state = (good, yes, no) => h('span', { class: good ? 'tag good' : 'tag bad' }, good ? yes : no);
const pairs = (rows) =>
  h('dl', { class: 'pairs' }, rows.map(([title, value]) => [h('dt', {}, title), h('dd', {}, value)]));

function draw(root, { place, role, offset, shard, leader, replicas, disk, history }) {
  render(root,
    h('div', { class: 'top' }, h('h1', {}, 'Nodes'),
      h('p', { class: 'soft' }, `${place} is a ${role === 'slave' ? 'replica' : 'leader'}`)),
    shard ? h('section', { class: 'card' },
      h('header', {}, h('h2', {}, `Shard ${shard.name}`),
        h('span', { class: 'soft small' }, `epoch ${count(shard.epoch)}`)), h('div', { class: 'in' },
      pairs([['This node', shard.node], ['May write for', role === 'slave' ? '–' : duration(shard.lease)],
          ['In sync', shard.in_sync.join(', ') || '–']]))) : null,
    leader ? h('section', { class: 'card' },
      h('header', {}, h('h2', {}, 'Leader'), state(leader.up, 'connected', 'lost')), h('div', { class: 'in' },
      pairs([['Address', leader.address], ['Last heard', `${duration(leader.silent)} ago`],
          ['Copies everything now', leader.syncing ? 'yes' : 'no']]))) : null,
    h('section', { class: 'card' },
      h('header', {}, h('h2', {}, 'Replicas'), h('span', { class: 'soft small' }, `log at ${bytes(offset)}`)),
      table({
        label: 'Replicas', rows: replicas, keyOf: (row) => row.address,
        empty: [h('strong', {}, 'No replica follows this server.'),
          'One more server makes a copy that survives this machine:',
          h('pre', {}, `penstock serve --port 7000 --replicaof ${place.replace(':', ' ')}`)],
        columns: [
          { title: 'Address', class: 'name', show: (row) => row.address },
          { title: 'State', show: (row) => state(row.state === 'online', 'online', row.state || 'unknown') },
          { title: 'Behind by', num: true, show: (row) => bytes(row.behind) },
          { title: 'Last heard', num: true, show: (row) => `${duration(row.silent)} ago` },
        ],
      })),
    h('div', { class: 'cards' },
      h('section', { class: 'card' },
        h('header', {}, h('h2', {}, 'On disk'), state(disk.log_ok && disk.snapshot_ok, 'well', 'failing')),
        h('div', { class: 'in' }, pairs([
        ['Log', disk.log ? `${bytes(disk.log_bytes)}${disk.rewriting ? ', being rewritten' : ''}` : 'off'],
        ['Last snapshot', disk.snapshot_time ? ago(disk.snapshot_time) : 'none'],
        ['Changes since', count(disk.changes)],
        ['Snapshot now', disk.saving ? 'being written' : 'no']]))),
      h('section', { class: 'card' },
        h('header', {}, h('h2', {}, 'History of streams'), state(history.ok, 'well', 'failing')),
        h('div', { class: 'in' }, pairs([
        ['In memory', history.limit ? `${bytes(history.held)} of ${bytes(history.limit)}` : bytes(history.held)],
        ['In files', history.enabled ? `${bytes(history.bytes)}, ${count(history.files)} files` : 'off']])))));
}

// Numbers, sizes and times for people.
import { h } from './dom.js';

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat('en-US', { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (n) => (n === null || n === undefined ? '–' : whole.format(n));

export function rate(n) {
  if (n === null || n === undefined) return '–';
  return n >= 100 || n === 0 ? whole.format(n) : tenth.format(n);
}

export function short(n) {
  for (const [size, unit] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (Math.abs(n) >= size) return `${+(n / size).toPrecision(3)}${unit}`;
  }
  return String(+Number(n).toPrecision(3));
}

export function bytes(n) {
  if (n === null || n === undefined) return '–';
  for (const [size, unit] of [[2 ** 40, 'TB'], [2 ** 30, 'GB'], [2 ** 20, 'MB'], [2 ** 10, 'kB']]) {
    if (n >= size) return `${tenth.format(n / size)} ${unit}`;
  }
  return `${whole.format(n)} B`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 1) return `${Math.max(Math.round(seconds * 1000), 0)} ms`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** A length of time that is known in whole seconds. */
export const seconds = (n) => (n < 1 ? '0 s' : duration(n));

export const milliseconds = (n) => `${n < 10 ? +n.toPrecision(2) : whole.format(n)} ms`;

/** The type of a key, as people say it. */
export const typeName = (type) =>
  ({ tstream: 'stream', stream: 'Redis stream', zset: 'sorted set' }[type] ?? type ?? '–');

/** A length of time in one unit, for graphs. */
export function span(seconds) {
  if (seconds === 0) return '0';
  for (const [size, unit] of [[86400 * 2, 'd'], [7200, 'h'], [120, 'min'], [0, 's']]) {
    if (seconds >= size) return `${+(seconds / { d: 86400, h: 3600, min: 60, s: 1 }[unit]).toPrecision(2)} ${unit}`;
  }
  return '';
}

/** Where the whole of a name is that was cut; nothing if it was not. */
export const wholeName = (id, size) =>
  (size ? h('a', { class: 'small', href: `/api/stream/name?key=${id}`, download: '' }, `Whole name (${bytes(size)})`)
      : null);

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export const absolute = (ms) => {
  const pad = (n, width = 2) => String(n).padStart(width, '0');
  const d = new Date(ms);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ` +
    `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}.${pad(d.getMilliseconds(), 3)}`;
};

export function relative(ms) {
  const seconds = (Date.now() - ms) / 1000;
  if (Math.abs(seconds) < 1) return 'now';
  return seconds < 0 ? `in ${duration(-seconds)}` : `${duration(seconds)} ago`;
}

/** How far a group is behind in time, if it is. */
export const behind = ({ lag, behind: ms }) =>
  (lag ? h('span', { class: 'behind' }, duration(ms / 1000)) : h('span', { class: 'zero' }, '–'));

/** A time: relative, with the absolute one on hover. Times on the page are kept true by `keepTimes`. */
export function ago(ms) {
  if (!ms) return '–';
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  return h('time', { datetime: date.toISOString(), title: absolute(ms), 'data-at': ms }, relative(ms));
}

export function keepTimes() {
  setInterval(() => {
    for (const node of document.querySelectorAll('time[data-at]')) {
      const at = Number(node.dataset.at);
      const text = relative(at);
      if (node.textContent !== text) node.textContent = text;
    }
  }, 5000);
}

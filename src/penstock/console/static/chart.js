// A graph of lines over time, as SVG. Points that are null are gaps.
import { h } from './dom.js';
import { absolute, short } from './format.js';

const LEFT = 56, BOTTOM = 20, TOP = 8, RIGHT = 8;

const TIMES =
  [1, 2, 4, 8, 20, 40, 60, 120, 240, 480, 1200, 2400, 3600, 7200, 14400, 28800, 86400, 172800, 345600, 691200, 1728000];

/** The top of the axis: a number whose quarters are short. `base` is 1024 for bytes, and 60 for seconds. */
function top(highest, base = 1) {
  if (highest <= 0) return 1;
  if (base === 60) return TIMES.find((each) => each >= highest) || highest;
  if (base > 1 && highest >= base) return base * top(highest / base, base);
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= highest);
}

const clock = (seconds, step) => {
  const d = new Date(seconds * 1000);
  const two = (n) => String(n).padStart(2, '0');
  if (step >= 86400) return `${two(d.getMonth() + 1)}-${two(d.getDate())}`;
  return `${two(d.getHours())}:${two(d.getMinutes())}`;
};

/** Times for the axis: full quarters, hours or days of the clock of this browser, as many as there is room for. */
function ticks(from, to, room) {
  const steps = [60, 180, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 345600];
  const step = steps.find((each) => (to - from) / each <= room / 70) || 604800;
  const shift = new Date(to * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return { step, found };
}

/** The width of a graph on this screen: of a page that has so many graphs side by side. */
function widthFor(columns) {
  const room = (document.querySelector('main')?.clientWidth || 800) - 64;
  const beside = room > 720 ? columns : 1;
  return Math.max(280, Math.round((room - 20 * (beside - 1)) / beside) - 34);
}

/** lines: [{name, values, kind}] over `times` in seconds, between `from` and `to`. `show` formats a value. */
export function chart({ label, from, to, times, lines, show = short, low = false, width, base = 1 }) {
  const height = low ? 120 : 190;
  const highest = top(Math.max(0, ...lines.flatMap((line) => line.values.filter((v) => v !== null))), base);
  const x = (t) => LEFT + ((t - from) / Math.max(to - from, 1)) * (width - LEFT - RIGHT);
  const y = (v) => TOP + (1 - v / highest) * (height - TOP - BOTTOM);
  const svg =
    h('svg', { class: low ? 'graph low' : 'graph', viewBox: `0 0 ${width} ${height}`, role: 'img',
        'aria-label': label });
  const steps = low ? 2 : 4;
  for (let step = 0; step <= steps; step += 1) {
    const value = (highest * step) / steps;
    svg.append(h('line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(h('text', { x: LEFT - 6, y: y(value) + 4, 'text-anchor': 'end' }, show(value)));
  }
  const marks = ticks(from, to, width - LEFT - RIGHT);
  for (const at of marks.found) {
    const anchor = x(at) < LEFT + 16 ? 'start' : x(at) > width - RIGHT - 16 ? 'end' : 'middle';
    svg.append(h('text', { x: x(at), y: height - 5, 'text-anchor': anchor }, clock(at, marks.step)));
  }
  lines.forEach((line, number) => {
    const kind = `k${line.kind || (number % 6) + 1}`;
    let path = '', area = '', begun = null, last = null;
    const close = () => {
      if (begun !== null && begun === last) path += 'h.01'; // a point alone is drawn as a dot
      if (begun !== null) area += `L${last.toFixed(1)},${y(0).toFixed(1)}L${begun.toFixed(1)},${y(0).toFixed(1)}Z`;
      begun = null;
    };
    line.values.forEach((value, at) => {
      if (value === null) return close();
      const place = x(times[at]);
      const point = `${place.toFixed(1)},${y(value).toFixed(1)}`;
      path += `${begun === null ? 'M' : 'L'}${point}`;
      area += `${begun === null ? 'M' : 'L'}${point}`;
      if (begun === null) begun = place;
      last = place;
      return null;
    });
    close();
    if (lines.length === 1 && area) svg.append(h('path', { class: `area ${kind}`, d: area }));
    if (path) svg.append(h('path', { class: kind, d: path }));
  });
  svg.append(h('line', { class: 'cross', x1: -9, x2: -9, y1: TOP, y2: height - BOTTOM }));
  return svg;
}

/** A graph with its legend; the legend has the values under the pointer, or the newest. */
export function graph(options) {
  const { times, lines, show = short, name } = options;
  if (!times.length) {
    return h('div', { 'data-key': `${name}-wait`, class: 'graph-wait' },
      'The graph begins with the next figures, in about 20 s.');
  }
  const width = widthFor(options.columns || 1);
  const svg = chart({ ...options, width });
  const values = (at) => lines.map((line, number) => h('li', {}, swatch(`k${line.kind || (number % 6) + 1}`),
    h('b', {}, at < 0 || line.values[at] === null ? '–' : show(line.values[at])), ` ${line.name}`));
  const box =
    h('div', { 'data-key': name, class: 'graph-box' }, h('ul', { class: 'legend' }, values(times.length - 1)), svg);
  const move = (event) => {
    const place = event.currentTarget.getBoundingClientRect();
    const across = (event.clientX - place.left) / place.width * width;
    const t = options.from + ((across - LEFT) / (width - LEFT - RIGHT)) * (options.to - options.from);
    let at = -1;
    times.forEach((each, number) => { if (Math.abs(each - t) < Math.abs((times[at] ?? -1e12) - t)) at = number; });
    if (at < 0) return;
    const cross = event.currentTarget.querySelector('.cross');
    const x = LEFT + ((times[at] - options.from) / Math.max(options.to - options.from, 1)) * (width - LEFT - RIGHT);
    cross.setAttribute('x1', x);
    cross.setAttribute('x2', x);
    event.currentTarget.parentNode.querySelector('.legend').replaceChildren(...values(at),
      h('li', { class: 'soft' }, absolute(times[at] * 1000).slice(0, 19)));
  };
  const leave = (event) => {
    event.currentTarget.querySelector('.cross').setAttribute('x1', -9);
    event.currentTarget.querySelector('.cross').setAttribute('x2', -9);
    event.currentTarget.parentNode.querySelector('.legend').replaceChildren(...values(times.length - 1));
  };
  const area = h('div', { onpointermove: move, onpointerleave: leave });
  area.append(svg);
  box.append(area);
  return box;
}

const swatch = (kind) => h('svg', { viewBox: '0 0 16 10', 'aria-hidden': 'true' },
  h('line', { class: kind, x1: 0, x2: 16, y1: 5, y2: 5 }));

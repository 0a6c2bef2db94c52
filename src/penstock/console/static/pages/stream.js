// One stream. Its parts are tabs, each in a file of its own.
import { view } from '../api.js';
import { h, render } from '../dom.js';
import { bytes, count, duration, plural, rate, wholeName } from '../format.js';
import { live } from '../live.js';
import graph from './stream_graph.js';
import groups from './stream_groups.js';
import letters from './stream_letters.js';
import messages from './stream_messages.js';
import settings from './stream_settings.js';

const TABS = { graph, messages, groups, letters, settings };
const TITLES =
  { graph: 'Graph', messages: 'Messages', groups: 'Groups', letters: 'Dead letters', settings: 'Retention and schema' };

export default {
  open(root, place) {
    const { key } = place.params;
    const tab = TABS[place.params.tab] ? place.params.tab : 'graph';
    let news = null;
    let isLetters = tab === 'letters';
    const body = h('div', { 'data-own': '', 'data-key': `tab-${tab}`, class: 'page' });
    const part = TABS[tab].open(body, place, key);
    const redraw = () => {
      if (!news) return;
      place.title(news.name);
      render(root, head(news), tabs(key, tab, news, isLetters), body);
    };
    render(root, h('h1', {}, 'Stream'), h('p', { class: 'soft wait' }, 'Reading …'));
    view('stream-kind', { key }).then((found) => {
      isLetters ||= found.letters;
      redraw();
    }).catch(() => {});
    place.until(live('stream', { key }, (found) => {
      news = found;
      redraw();
      part?.update?.(found);
    }, (problem) => {
      render(root, h('h1', {}, decodeName(key)), h('div', { class: 'card empty' }, h('strong', {}, problem.error),
        h('a', { href: '/streams' }, 'All streams')));
    }));
    if (part?.stop) place.until(part.stop);
  },
};

function decodeName(key) {
  try {
    return decodeURIComponent(key || '');
  } catch {
    return key;
  }
}

function head(news) {
  const lag = Math.max(0, ...news.groups.map((group) => group.lag));
  const late = Math.max(0, ...news.groups.map((group) => group.behind));
  const groups = plural(news.groups.length + news.more_groups, 'group');
  const items = [
    ['Messages', count(news.length), news.length ? `${count(news.first)} – ${count(news.last)}` : 'none'],
    ['Written', `${rate(news.rate)}/s`, news.delayed ? `${count(news.delayed)} delayed` : 'messages'],
    ['Size', bytes(news.bytes + news.history.bytes),
      news.history.bytes ? `${bytes(news.history.bytes)} in files` : `${bytes(news.raw)} uncompressed`],
    ['Lag', news.groups.length ? count(lag) : '–',
      news.groups.length ? (lag ? `${duration(late / 1000)} behind, ${groups}` : groups) : 'no groups'],
  ];
  return [
    h('div', { class: 'top' }, h('h1', {}, news.name),
      h('p', { class: 'small' }, wholeName(news.key, news.name_size), ' ',
      news.letters.map((each) =>
          [h('a', { href: `/stream?key=${each.key}&tab=letters` }, 'Dead letters in ', each.name), ' · ']),
      h('a', { href: '/streams' }, 'All streams'))),
    h('dl', { class: 'figures' },
      items.map(([title, value, note]) => h('div', {}, h('dt', {}, title), h('dd', {}, value, h('small', {}, note))))),
  ];
}

function tabs(key, tab, news, isLetters) {
  const shown = Object.keys(TABS).filter((name) => name !== 'letters' || isLetters);
  return h('nav', { class: 'tabs', 'aria-label': 'Parts of this stream' }, shown.map((name) =>
    h('a', { href: `/stream?key=${key}&tab=${name}`, 'aria-current': name === tab ? 'true' : null },
      TITLES[name],
      name === 'groups' && news.groups.length ? ` (${count(news.groups.length + news.more_groups)})` : '')));
}

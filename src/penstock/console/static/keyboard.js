// Keys: / to filter, g and a letter to go to a page, t for the theme, ? for this list.
import { confirm } from './dialog.js';
import { h } from './dom.js';
import { go } from './router.js';
import { shortcuts, toggleTheme } from './shell.js';

let waiting = 0;

export function start() {
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches?.('input, textarea, select') || document.querySelector('dialog[open]');
    if (typing) {
      if (event.key === 'Escape') event.target.blur?.();
      return;
    }
    if (Date.now() < waiting) {
      waiting = 0;
      const found = shortcuts.find(([, , letter]) => letter === event.key);
      if (found) go(found[0]);
    } else if (event.key === 'g') waiting = Date.now() + 1500;
    else if (event.key === 't') toggleTheme();
    else if (event.key === '?') help();
    else if (event.key === '/') {
      const box = document.querySelector('input[type="search"]');
      if (!box) return;
      event.preventDefault();
      box.focus();
      box.select();
    }
  });
}

function help() {
  const keys =
    [['/', 'Filter'], ...shortcuts.map(([, title, letter]) => [`g ${letter}`, title]), ['t', 'Light or dark'],
      ['?', 'This list']];
  confirm({
    title: 'Keyboard',
    body: h('dl', { class: 'pairs' }, keys.map(([key, title]) => [h('dt', {}, h('kbd', {}, key)), h('dd', {}, title)])),
    button: 'Close', cancel: null,
    run: async () => null,
  });
}

// Names and roles that Dash's controls and plotly's figures lack, put right whenever a part of the page is drawn anew:
// a control is named by the label above it, a choice of a few is a group of radio buttons, a figure by its card.
(function () {
  let count = 0;
  const idOf = (element) => {
    if (!element.id) { element.id = 'named-' + (count += 1); }
    return element.id;
  };
  function set(element, attributes) {
    Object.entries(attributes).forEach(([name, value]) => {
      if (value === null) { element.removeAttribute(name); }
      else if (element.getAttribute(name) !== value) { element.setAttribute(name, value); }
    });
  }

  function control(element) {
    const label = element.querySelector(':scope > .label');
    if (!label) { return; }
    const id = idOf(label);
    element.querySelectorAll('.dash-radioitems').forEach((group) => {
      set(group, { role: 'radiogroup', 'aria-labelledby': id });
      group.querySelectorAll('label').forEach((option) => set(option, { role: null, 'aria-selected': null }));
    });
    element.querySelectorAll('.dash-dropdown-wrapper').forEach((wrapper) => {
      const button = wrapper.querySelector('button.dash-dropdown'), target = wrapper.querySelector('.dash-dropdown-focus-target');
      const chosen = button?.querySelector('.dash-dropdown-value');
      if (button) { set(button, { 'aria-labelledby': chosen ? id + ' ' + idOf(chosen) : id }); }
      if (target) { set(target, { 'aria-hidden': null, 'aria-label': label.textContent + ': ' + (chosen?.textContent || '') }); }
    });
    element.querySelectorAll('input.dash-input-element').forEach((input) => {
      set(input, { 'aria-labelledby': id });
      // Dash puts the caret back where it was a letter ago: between two fast letters they would change places.
      if (input.type === 'search') { input.setSelectionRange = () => {}; }
    });
    element.querySelectorAll('.buttons').forEach((group) => set(group, { role: 'group', 'aria-labelledby': id }));
  }

  function figure(plot) {
    const card = plot.closest('.card'), title = card?.querySelector('h2')?.textContent || 'figure';
    const note = card?.querySelector('header .note')?.textContent || '';
    const time = plot.layout?.meta?.page ? ' Keys: A and D move, W and S zoom, F shows all, up and down tell what is in the middle of a lane.' : '';
    set(plot, { role: 'figure', tabindex: '0', 'aria-label': (title + '. ' + note + time).trim() });
    plot.querySelectorAll('.modebar-btn').forEach((button) => {
      // where keys do the same, six stops less on the way
      set(button, { 'aria-label': button.dataset.title || 'tool', role: 'button', ...(time ? { tabindex: '-1' } : {}) });
    });
  }

  const title = document.title;
  function repair() {
    const here = document.querySelector('nav.side a.nav.here')?.textContent;
    if (here) { document.title = here + ' · ' + title; }  // tabs are told apart
    document.querySelectorAll('.control').forEach(control);
    document.querySelectorAll('nav.side a.nav').forEach((link) => {
      set(link, { 'aria-current': link.classList.contains('here') ? 'page' : null });
    });
    document.querySelectorAll('.js-plotly-plot').forEach(figure);
    document.querySelectorAll('.bar-chart').forEach((chart) => {
      set(chart, { role: 'figure', 'aria-label': chart.closest('.card')?.querySelector('h2')?.textContent || 'bars' });
    });
    document.querySelectorAll('.ag-floating-filter-input input, .ag-floating-filter-body input').forEach((input) => {
      if (!input.getAttribute('aria-label')) { set(input, { 'aria-label': 'filter' }); }
    });
    document.querySelectorAll('.scroll').forEach((part) => set(part, { tabindex: '0', role: 'region', 'aria-label': part.closest('.card')?.querySelector('h2')?.textContent || 'list' }));
  }

  // -- tables: arrows go from cell to cell, Tab goes on to what follows. A thousand rows would hold whoever has no mouse.
  const STOPS = 'a[href], button:not(:disabled), input:not([type=hidden]):not(:disabled), textarea, summary, [tabindex="0"]';
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') { event.target.closest?.('.ag-row .ag-cell')?.click(); }  // a row, as by a click
    const grid = event.key === 'Tab' && event.target.matches?.('.ag-cell, .ag-header-cell') && event.target.closest('.ag-root-wrapper');
    if (!grid) { return; }
    const way = event.shiftKey ? Node.DOCUMENT_POSITION_PRECEDING : Node.DOCUMENT_POSITION_FOLLOWING;
    const stops = Array.from(document.querySelectorAll(STOPS)).filter((one) => !grid.contains(one) && one.tabIndex >= 0
      && (grid.compareDocumentPosition(one) & way) && one.checkVisibility({ visibilityProperty: true }));
    const next = event.shiftKey ? stops.at(-1) : stops[0];
    event.stopPropagation();
    if (next) { event.preventDefault(); next.focus(); }
    else { event.target.blur(); event.preventDefault(); }  // the page's end: what follows is the browser's
  }, true);

  // -- focus: what had it and is drawn anew has it again; of another page, the page has it ---------------
  let last = null;
  const cardOf = (element) => element.closest('.card')?.querySelector('h2')?.textContent;
  const wordsOf = (element) => element.getAttribute('aria-label') || element.textContent.trim();
  document.addEventListener('focusin', ({ target }) => {
    last = { element: target, id: target.id, tag: target.tagName, words: wordsOf(target), card: cardOf(target),
             grid: target.closest('.ag-root'), path: window.location.pathname, since: 0 };
  });
  document.addEventListener('focusout', ({ target, relatedTarget }) => {
    setTimeout(() => { if (!relatedTarget && target.isConnected && last?.element === target) { last = null; } });
  });
  function again() {
    const byId = last && !/^named-/.test(last.id) && last.id ? document.getElementById(last.id) : null;
    if (byId) { return byId; }
    const cards = Array.from(document.querySelectorAll('.card')).filter((card) => card.querySelector('h2')?.textContent === last.card);
    const alike = cards.flatMap((card) => Array.from(card.querySelectorAll(last.tag)));
    return alike.find((one) => wordsOf(one) === last.words);
  }
  function keepFocus() {
    if (!last || last.element.isConnected || last.grid?.isConnected || document.activeElement !== document.body) { return; }
    const moved = last.path !== window.location.pathname, next = moved ? null : again();
    last.since = last.since || performance.now();
    if (!next && !moved && performance.now() - last.since < 3000) { setTimeout(keepFocus, 300); return; }
    (next || document.getElementById('main'))?.focus({ preventScroll: true });
  }

  let waiting = false;
  new MutationObserver(() => {
    if (waiting) { return; }
    waiting = true;
    setTimeout(() => { waiting = false; repair(); keepFocus(); window.ipuscopeTimeline?.frames(); }, 60);
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ['aria-selected', 'aria-hidden', 'data-title'] });
})();

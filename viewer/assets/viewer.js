// The browser's side of the viewer: the address, the theme, keys, and saving figures.
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.viewer = {
  // Path, query and theme as they are now. A click on "Theme" changes the theme first.
  where: function (path, search, clicks) {
    const root = document.documentElement;
    const by = window.dash_clientside.callback_context.triggered_id;
    if (by === 'theme' && clicks) {
      root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
      try { localStorage.setItem('ipuscope-theme', root.dataset.theme); } catch { /* as in the page's head */ }
    }
    window.ipuscopeRedirect();
    window.ipuscopeCarry();
    if (new URLSearchParams(window.location.search).has('query')) {
      setTimeout(() => window.dash_clientside.set_props({ page: 'query', param: 'query' }, { value: 'open' }));
    }
    window.ipuscopeAsked = new URLSearchParams(window.location.search);
    window.ipuscopeDrawn = window.location.search;
    window.ipuscopeFresh = true;  // until the page wrote its own defaults
    return window.ipuscopeHere();
  },

  // Every parameter of the page into the address, without a step in the browser's history.
  write: function (values) {
    const ids = window.dash_clientside.callback_context.inputs_list[0] || [];
    const own = ids.filter((one) => one.id.page !== 'query');  // its drawer is beside every page
    const query = new URLSearchParams();
    const shown = window.location.pathname.replaceAll('/', '') || 'summary';
    // Of a page, or of a step in the browser's history, that was left meanwhile.
    if (own[0]?.id.page !== shown || window.location.search !== window.ipuscopeDrawn) { return window.dash_clientside.no_update; }
    ids.forEach((one) => {
      const value = one.value;
      if (value !== undefined && value !== null && !Number.isNaN(value) && String(value) !== '') {
        query.set(one.id.param, Array.isArray(value) ? value.join(',') : String(value));
      }
    });
    const before = new URLSearchParams(window.location.search);
    if (before.get('theme')) { query.set('theme', document.documentElement.dataset.theme); }
    const address = window.location.pathname + (query.size ? '?' + query : '');
    const moved = ['from', 'to', 'starts'].some((name) => (before.get(name) || '') !== (query.get(name) || ''));
    const now = performance.now();
    // A zoom that comes to rest, or a split, is a step back in the browser; those on the way are not.
    const push = moved && before.has('profile') && now - (window.ipuscopeMoved || -1e9) > 700;
    if (moved) { window.ipuscopeMoved = now; }
    window.history[push ? 'pushState' : 'replaceState'](window.history.state, '', address);
    window.ipuscopeDrawn = window.location.search;
    window.ipuscopeKeep(query);
    window.ipuscopeRefused(query);
    const chosen = before.has('profile') && !window.ipuscopeFresh;
    window.ipuscopeFresh = false;
    const other = (name) => chosen && (before.get(name) || '') !== (query.get(name) || '');
    if (other('profile') || other('with')) { window.ipuscopeAnew(query, other('profile')); }
    return address;
  },

  shortcuts: function (clicks) {
    if (clicks) { document.getElementById('shortcuts').showModal(); }
    return false;
  },
};

// Columns of a table between their limits, whenever its width changes. (dash-ag-grid's columnSizeOptions does
// that too, and hands its name on to AG Grid, which warns in the console.)
window.dashAgGridFunctions = {
  fitted: function (params) {
    const { columnLimits } = params.api.getGridOption('autoSizeStrategy');
    params.api.sizeColumnsToFit({ columnLimits: columnLimits.map(({ colId, ...limit }) => ({ key: colId, ...limit })) });
  },
};

// A path in a cell: its start and its end tell it from others, so that what has no room is left out between them. The
// text stays whole for who copies it.
const ruler = document.createElement('canvas').getContext('2d');
window.dashAgGridComponentFunctions = {
  ends: function (params) {
    const letters = Array.from(String(params.value ?? '')), at = Math.ceil(letters.length / 3);
    const parts = [letters.slice(0, at).join(''), letters.slice(at).join('')];
    ruler.font = `13px ${getComputedStyle(document.body).fontFamily}`;
    const [head, tail] = parts.map((part) => `${Math.ceil(ruler.measureText(part).width) + 1}px`);
    return window.React.createElement('span', { className: 'ends', style: { '--head': head, '--tail': tail } },
      window.React.createElement('span', null, parts[0]),
      window.React.createElement('span', null, window.React.createElement('bdi', null, parts[1])));
  },
};

// What an address asked for and did not get is said above the page, until its parameter is another.
window.ipuscopeRefused = function (query) {
  const messages = Array.from(document.querySelectorAll('#alert [data-refused]'));
  const value = (one) => query.get(one.dataset.refused) || '';
  const holds = (one) => {
    if (one.ipuscopeSaid?.words !== one.textContent) { one.ipuscopeSaid = { words: one.textContent, value: value(one) }; }
    return one.ipuscopeSaid.value === value(one);
  };
  const rest = messages.filter(holds);
  if (rest.length === messages.length) { return; }
  const part = (one) => ({ namespace: 'dash_html_components', type: 'Div', props: {
    children: one.textContent, className: one.className, role: 'status', 'data-refused': one.dataset.refused } });
  window.dash_clientside.set_props('alert', { children: rest.map(part) });
};

window.ipuscopeHere = () => ({
  path: window.location.pathname, search: window.location.search, theme: document.documentElement.dataset.theme,
  width: Math.max(320, window.innerWidth - (window.innerWidth > 860 ? 252 : 68)
    - (window.innerWidth > 1200 && window.location.pathname === '/timeline' ? 314 : 0)),
});

// Another profile was chosen: the whole page is that one's, head and choices too. What is a number of the one that was
// shown (an operator, a point, a split) is nothing in the other.
window.ipuscopeAnew = function (query, profile) {
  (profile ? ['op', 'node', 'toggled', 'variable', 'at', 'step', 'opened', 'starts', 'ipus', 'select', 'rows'] : []).forEach((name) => query.delete(name));
  window.history.replaceState(window.history.state, '', window.location.pathname + '?' + query);
  window.ipuscopeDrawn = window.location.search;
  window.dash_clientside.set_props('where', { data: window.ipuscopeHere() });
};

// Pages that others took in: their addresses lead there.
const moved = {
  '/pipeline': ['/timeline', {}], '/trace': ['/timeline', { form: ['level', { flat: 'steps', flame: 'modules' }] }],
  '/liveness': ['/memory', {}], '/flame': ['/costs', {}], '/program': ['/costs', { add: ['order', 'program'] }],
  '/operations': ['/costs', { group: ['order', { aten: 'aten', module: 'module', block_name: 'block', stage: 'stage' }] }],
  '/query': ['/', { add: ['query', 'open'], form: ['chart', null] }],
};
window.ipuscopeRedirect = function () {
  const to = moved[window.location.pathname];
  if (!to) { return; }
  const query = new URLSearchParams(window.location.search);
  Object.entries(to[1]).forEach(([name, [other, values]]) => {
    if (name === 'add') { query.set(other, values); return; }
    const value = query.get(name);
    query.delete(name);
    if (value !== null && (!values || values[value])) { query.set(other, values ? values[value] : value); }
  });
  if (window.location.pathname === '/operations') { query.delete('within'); }
  window.history.replaceState(window.history.state, '', to[0] + (query.size ? '?' + query : ''));
};

// What is chosen on one page holds on the others that have it, however many lie between: the profile on all, the
// unit, call, iteration and window on those of time, IPU and tile on those of memory; on the timeline
// the IPU may be all of them.
const shared = [
  { pages: null, names: ['profile', 'with'], values: {} },
  { pages: ['/timeline'], names: ['unit', 'run', 'iteration', 'from', 'to', 'marks'], values: {} },
  { pages: ['/', '/timeline', '/rebalance'], names: ['batch'], values: {} },
];
// The IPU holds on every page that has one, once somebody chose it: what a page begins with is no choice. All of them
// are a choice on these two only.
const chips = { pages: ['/memory', '/timeline'], every: ['/timeline'], value: '', seen: {} };

const on = (group, path) => !group.pages || group.pages.includes(path);
// A link within a page leads to its place in the profile, call and iteration that are shown, in the unit of time.
const carried = ['profile', 'with', 'unit', 'run', 'iteration'];
const carry = (path, query) => shared.filter((group) => on(group, path)).forEach((group) => group.names
  .filter((name) => carried.includes(name) && group.values[name] && !query.has(name))
  .forEach((name) => query.set(name, group.values[name])));
window.ipuscopeCarry = function () {
  const query = new URLSearchParams(window.location.search), path = window.location.pathname, before = String(query);
  carry(path, query);
  if (String(query) !== before) { window.history.replaceState(window.history.state, '', path + '?' + query); }
};
// So does a link that is opened in a tab of its own, or copied: a new tab does not know what is shown here.
['pointerdown', 'focusin'].forEach((kind) => document.addEventListener(kind, ({ target }) => {
  const link = target.closest?.('main a[href^="/"]');
  if (!link) { return; }
  if (link.href !== link.carried) { link.drawn = link.href; }  // it may outlive what is shown
  const to = new URL(link.drawn);
  carry(to.pathname, to.searchParams);
  link.setAttribute('href', to.pathname + to.search);
  link.carried = link.href;
}));

window.ipuscopeKeep = function (query) {
  shared.filter((group) => on(group, window.location.pathname) && (group.pages || query.has('profile')))
    .forEach((group) => group.names.forEach((name) => { group.values[name] = query.get(name) || ''; }));
  const here = window.location.pathname, ipu = query.get('ipu');
  if (ipu !== null && chips.pages.includes(here)) {
    const before = chips.seen[here];
    if (before !== undefined ? before !== ipu : window.ipuscopeAsked.has('ipu')) { chips.value = ipu; }
    chips.seen = { [here]: ipu };
  }
  document.querySelectorAll('nav.side a.nav').forEach((link) => {
    const path = new URL(link.href).pathname, carried = new URLSearchParams();
    if (chips.value && chips.pages.includes(path) && (chips.value !== 'all' || chips.every.includes(path))) { carried.set('ipu', chips.value); }
    shared.filter((group) => on(group, path)).flatMap((group) => Object.entries(group.values))
      .forEach(([name, value]) => { if (value) { carried.set(name, value); } });
    window.dash_clientside.set_props({ nav: path }, { href: path + (carried.size ? '?' + carried : '') });
  });
};

(function () {
  const plotOf = (element) => Array.from(element.closest('.card')?.querySelectorAll('.js-plotly-plot') || [])
    .sort((one, other) => other.offsetHeight - one.offsetHeight)[0];

  // -- saving a figure --------------------------------------------------------------------------------
  const quoted = (value) => {
    let words = value === undefined || value === null ? '' : String(value);
    // A name that a spreadsheet would take for a formula, or a terminal for a command.
    if (typeof value === 'string' && Number.isNaN(Number(value))) {
      words = words.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '\ufffd').replace(/^[=+\-@\t]/, "'$&");
    }
    return /[",\n]/.test(words) ? '"' + words.replaceAll('"', '""') + '"' : words;
  };
  const text = (html) => {
    const page = new DOMParser().parseFromString(String(html ?? '').replaceAll('<br>', '; '), 'text/html');
    return page.body.textContent;
  };
  const list = (values) => (values ? Array.from(values) : []);

  function rowsOf(plot) {
    const rows = [['trace', 'x', 'y', 'value', 'note']];
    (plot._fullData || []).filter((trace) => trace.visible === true && !(trace.type === 'scatter' && trace.fill === 'toself')).forEach((trace) => {
      if (trace.type === 'heatmap') {
        const z = list(trace.z), x = list(trace.x), y = list(trace.y);
        z.forEach((row, j) => list(row).forEach((value, i) => rows.push([trace.name, x[i] ?? i, y[j] ?? j, value, ''])));
        return;
      }
      const x = list(trace.x), y = list(trace.y), base = trace.base === undefined ? null : trace.base;
      const note = list(trace.customdata);
      x.forEach((value, i) => {
        const start = base === null ? '' : (typeof base === 'object' ? base[i] : base);
        const words = Array.isArray(note[i]) ? note[i].join('; ') : text(note[i]);
        rows.push(base === null ? [trace.name, value, y[i], '', words] : [trace.name, start, y[i], value, words]);
      });
    });
    return rows;
  }

  function save(name, type, content) {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Bars that are elements of the page (pages/bars.py): as rows, and as a picture of what stands where.
  function rowsOfBars(bars) {
    const rows = [['bar', 'part', bars.dataset.unit || 'value']];
    bars.querySelectorAll('.bar').forEach((bar) => {
      bar.querySelectorAll('[data-value]').forEach((piece) => {
        rows.push([bar.querySelector('.label').textContent, piece.dataset.name, piece.dataset.value]);
      });
    });
    return rows;
  }
  function pictureOfBars(bars) {
    const frame = bars.getBoundingClientRect(), shapes = 'http://www.w3.org/2000/svg';
    const make = (name, attributes, words) => {
      const one = document.createElementNS(shapes, name);
      Object.entries(attributes).forEach(([key, value]) => one.setAttribute(key, value));
      if (words) { one.textContent = words; }
      return one;
    };
    const picture = make('svg', { xmlns: shapes, width: Math.ceil(frame.width), height: Math.ceil(frame.height) });
    const card = getComputedStyle(document.documentElement).getPropertyValue('--card');
    picture.append(make('rect', { width: '100%', height: '100%', fill: card }));
    bars.querySelectorAll('[data-value], .legend i, .mark').forEach((one) => {
      const box = one.getBoundingClientRect(), style = getComputedStyle(one);
      const line = one.classList.contains('mark');
      const colours = style.backgroundImage.match(/rgba?\([^)]*\)/g);  // hatched: its own colour comes last
      const fill = line ? style.borderLeftColor : colours ? colours.at(-1) : style.backgroundColor;
      picture.append(make('rect', { x: box.x - frame.x, y: box.y - frame.y, width: line ? 1.5 : box.width,
        height: box.height, fill }));
    });
    const words = document.createTreeWalker(bars, NodeFilter.SHOW_TEXT);
    while (words.nextNode()) {
      const range = document.createRange();
      range.selectNodeContents(words.currentNode);
      const box = range.getBoundingClientRect(), style = getComputedStyle(words.currentNode.parentElement);
      if (!box.width) { continue; }
      picture.append(make('text', { x: box.x - frame.x, y: box.y - frame.y + box.height / 2, fill: style.color,
        'dominant-baseline': 'central', 'font-size': style.fontSize, 'font-family': style.fontFamily },
      words.currentNode.textContent));
    }
    return picture;
  }
  async function pixels(picture) {
    const image = new Image();
    image.src = 'data:image/svg+xml,' + encodeURIComponent(new XMLSerializer().serializeToString(picture));
    await image.decode();
    const canvas = document.createElement('canvas');
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((done) => canvas.toBlob(done, 'image/png'));
  }

  async function saveBars(bars, form, name, copied) {
    if (form === 'csv') {
      save(name + '.csv', 'text/csv', rowsOfBars(bars).map((row) => row.map(quoted).join(',')).join('\n') + '\n');
    } else if (form === 'svg') {
      save(name + '.svg', 'image/svg+xml', new XMLSerializer().serializeToString(pictureOfBars(bars)));
    } else if (form === 'copy') {
      await navigator.clipboard.write([new ClipboardItem({ 'image/png': await pixels(pictureOfBars(bars)) })]);
      copied();
    } else {
      save(name + '.png', 'image/png', await pixels(pictureOfBars(bars)));
    }
  }

  document.addEventListener('click', (event) => {
    const button = event.target.closest('[data-save]');
    if (!button) { return; }
    const plot = plotOf(button), bars = button.closest('.card').querySelector('.bar-chart');
    const copied = () => {
      button.textContent = 'Copied';
      setTimeout(() => { button.textContent = 'Copy'; }, 1200);
    };
    const name = 'ipuscope-' + (button.closest('.card').querySelector('h2').textContent || 'figure')
      .toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');
    if (bars) { saveBars(bars, button.dataset.save, name, copied); }
    if (!plot) { return; }
    const copying = button.dataset.save === 'copy';
    if (button.dataset.save === 'csv') {
      save(name + '.csv', 'text/csv', rowsOf(plot).map((row) => row.map(quoted).join(',')).join('\n') + '\n');
    } else {
      const card = getComputedStyle(document.documentElement).getPropertyValue('--card');
      window.Plotly.toImage(
        { data: plot.data, layout: { ...plot.layout, paper_bgcolor: card }, config: plot.config },
        { format: copying ? 'png' : button.dataset.save, width: plot.offsetWidth, height: plot.offsetHeight,
          scale: button.dataset.save === 'svg' ? 1 : 2 },
      ).then(async (address) => {
        if (copying) {
          const picture = await (await fetch(address)).blob();
          await navigator.clipboard.write([new ClipboardItem({ 'image/png': picture })]);
          copied();
          return;
        }
        const link = document.createElement('a');
        link.href = address;
        link.download = name + '.' + button.dataset.save;
        link.click();
      });
    }
  });

  // -- on paper: a figure that is drawn anew for its width keeps its place meanwhile -------------------
  const graphs = () => Array.from(document.querySelectorAll('.dash-graph'));
  window.addEventListener('beforeprint', () => graphs().forEach((one) => { one.style.minHeight = one.offsetHeight + 'px'; }));
  window.addEventListener('afterprint', () => graphs().forEach((one) => { one.style.minHeight = ''; }));

  // -- keys -------------------------------------------------------------------------------------------
  // A number that there is not: the field keeps what was typed, and the page says why nothing follows.
  let refused = null;
  document.addEventListener('change', (event) => {
    const field = event.target;
    if (!field.matches?.('input[type=number]')) { return; }
    const name = field.closest('.control')?.querySelector('.label')?.textContent.split(' (')[0] || 'number';
    const count = (number) => Number(number).toLocaleString('en-US');
    const there = field.max ? `there are ${count(field.min || 0)} to ${count(field.max)}` : `they begin with ${field.min || 0}`;
    const words = `There is no ${name} ${field.value}: ${there}. The page is as before; type another.`;
    const wrong = !field.validity.valid;
    if (wrong || refused === field) {
      window.dash_clientside.set_props('alert', { children: wrong
        ? { namespace: 'dash_html_components', type: 'Div', props: { children: words, className: 'message warning', role: 'status' } }
        : [] });
    }
    refused = wrong ? field : null;
  }, true);

  // The next hit, once the words have reached the page.
  function step(words, button, tries) {
    const there = new URLSearchParams(window.location.search).get('find') === words;
    if (words && there) { document.getElementById(button)?.click(); }
    else if (words && tries) { setTimeout(() => step(words, button, tries - 1), 50); }
  }

  document.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && event.target.matches?.('input[type=search]')) {
      step(event.target.value, event.shiftKey ? 'timeline-previous' : 'timeline-next', 40);
    }
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && event.target.id === 'query-text') {
      document.getElementById('query-run')?.click();
    }
  });

  // -- drawers: the grip above one changes its height, by keyboard too ---------------------------------
  const root = document.documentElement;
  function high(pixels) {
    const height = Math.max(38, Math.min(window.innerHeight - 160, pixels));
    root.style.setProperty('--drawer', height + 'px');
    document.querySelector('.grip')?.setAttribute('aria-valuenow', String(Math.round(height)));
    try { localStorage.setItem('ipuscope-drawer', String(height)); } catch { /* as in the page's head */ }
  }
  try { const stored = Number(localStorage.getItem('ipuscope-drawer')); if (stored) { high(stored); } } catch { /* none */ }
  let gripped = null;
  document.addEventListener('pointerdown', (event) => {
    const grip = event.target.closest?.('.grip');
    if (grip) { gripped = { y: event.clientY, height: grip.parentElement.offsetHeight }; event.preventDefault(); grip.focus(); }
  });
  document.addEventListener('pointermove', (event) => { if (gripped) { high(gripped.height + gripped.y - event.clientY); } });
  document.addEventListener('pointerup', () => { gripped = null; });
  document.addEventListener('dblclick', (event) => {
    const grip = event.target.closest?.('.grip');
    if (grip) { high(grip.parentElement.offsetHeight > 60 ? 38 : 280); }
  });
  document.addEventListener('keydown', (event) => {
    const grip = event.target.closest?.('.grip'), by = { ArrowUp: 32, ArrowDown: -32 }[event.key];
    if (grip && by) { high(grip.parentElement.offsetHeight + by); event.preventDefault(); event.stopPropagation(); }
  }, true);

  // -- Rebalance: borders of stages are dragged along the row of Blocks, from edge to edge of the graph, or by keys
  let dragged = null, onGraph = false, wanted = '', sent = '';
  const splitOf = (row) => (sent ? wanted : row.dataset.split).split('@').map((part) => part.split(',').map(Number));  // starts, IPUs
  function ask(starts, ipus) {
    const ranks = [...new Set(ipus)].sort((a, b) => a - b), on = ipus.map((one) => ranks.indexOf(one));
    wanted = starts.join(',') + '@' + on.join(',');
    if (!sent) { answered(0); }
  }
  // One question at a time, the latest: a drag crosses Blocks faster than what-if answers.
  function answered(tries) {
    const shown = document.querySelector('.split')?.dataset.split;
    if (sent && sent !== shown && tries < 100) { setTimeout(() => answered(tries + 1), 30); return; }
    sent = wanted === shown || tries > 99 ? '' : wanted;
    if (sent) { window.dash_clientside.set_props({ page: 'rebalance', param: 'starts' }, { value: sent }); answered(1); }
  }
  function moveTo(row, stage, block) {
    const [starts, ipus] = splitOf(row), border = row.querySelector(`.border[data-stage="${stage}"]`);
    const first = Math.max(starts[stage - 1] + 1, Math.min((starts[stage + 1] || Number(row.dataset.blocks)) - 1, block));
    if (!(stage > 0 && stage < starts.length) || first === starts[stage]) { return; }
    starts[stage] = first;
    border.style.order = 2 * first - 1;  // at once; the answer has it there, too
    ask(starts, ipus);
    window.ipuscopeBorders();
  }
  // Where a border before a Block lies on the graph: on its edge, else left of its node; none within layers together.
  function onEdge(block) {
    if (!block) { return null; }  // of a stage that was removed
    const edge = window.cy.edges(`[cut = ${block}]`), box = window.cy.nodes(`[first = ${block}]`);
    if (edge.length) { return edge[0].renderedMidpoint(); }
    const { x1, y1, y2 } = box.length ? box[0].renderedBoundingBox({ includeLabels: false }) : {};
    return box.length ? { x: x1, y: (y1 + y2) / 2 } : null;
  }
  window.ipuscopeBorders = function () {
    const row = document.querySelector('.split');
    if (!row || !window.cy) { return; }
    const [starts] = splitOf(row);
    document.querySelectorAll('#model-graph-borders .border').forEach((border) => {
      const at = onEdge(starts[Number(border.dataset.stage)]);
      border.hidden = !at;
      if (at) { border.style.translate = `${at.x}px ${at.y}px`; }
    });
  };
  function nearestOnGraph(row, event) {
    const frame = document.getElementById('model-graph').getBoundingClientRect();
    const far = (block) => { const at = onEdge(block); return at ? Math.hypot(at.x - event.clientX + frame.x, at.y - event.clientY + frame.y) : Infinity; };
    const blocks = Array.from({ length: Number(row.dataset.blocks) - 1 }, (_, block) => [far(block + 1), block + 1]);
    return blocks.reduce((one, other) => (other[0] < one[0] ? other : one))[1];
  }
  // One in focus is in sight.
  document.addEventListener('focusin', (event) => {
    const border = event.target.closest?.('#model-graph-borders .border');
    if (!border?.matches(':focus-visible')) { return; }
    const frame = border.parentElement.getBoundingClientRect(), box = border.getBoundingClientRect();
    if (box.x < frame.x || box.right > frame.right || box.y < frame.y || box.bottom > frame.bottom) {
      window.cy.panBy({ x: frame.x + frame.width / 2 - box.x, y: frame.y + frame.height / 2 - box.y - box.height / 2 });
    }
  });
  document.addEventListener('pointerdown', (event) => {
    const border = event.target.closest?.('.border[data-stage]');
    if (!border || border.dataset.stage === '0') { return; }
    dragged = Number(border.dataset.stage);
    onGraph = !border.closest('.split');
    border.focus();
    event.preventDefault();
  });
  document.addEventListener('pointermove', (event) => {
    const row = dragged && document.querySelector('.split');
    if (!row) { return; }
    if (onGraph) { moveTo(row, dragged, nearestOnGraph(row, event)); return; }
    const middle = (one) => { const box = one.getBoundingClientRect(); return box.x + box.width / 2; };
    moveTo(row, dragged, Array.from(row.querySelectorAll('.block')).filter((one) => middle(one) < event.clientX).length);
  });
  ['pointerup', 'pointercancel'].forEach((name) => document.addEventListener(name, () => { dragged = null; }));
  document.addEventListener('keydown', (event) => {
    const border = event.target.closest?.('.border[data-stage]'), row = border && document.querySelector('.split');
    if (!row || event.ctrlKey || event.altKey || event.metaKey) { return; }
    const stage = Number(border.dataset.stage), [starts, ipus] = splitOf(row), by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const end = starts[stage + 1] || Number(row.dataset.blocks);
    if (by) { moveTo(row, stage, starts[stage] + by); }
    else if (event.key === '+' && end - starts[stage] > 1) {
      starts.splice(stage + 1, 0, Math.ceil((starts[stage] + end) / 2));
      ipus.splice(stage + 1, 0, Math.max(...ipus) + 1);
      ask(starts, ipus);
    } else if (event.key === 'Delete' && stage) { starts.splice(stage, 1); ipus.splice(stage, 1); ask(starts, ipus); }
    else { return; }
    event.preventDefault();
    event.stopPropagation();
  }, true);

  // -- the palette: pages and actions are found here, names of the profile by the server ----------------
  const press = (id) => () => document.getElementById(id)?.click();
  const query = (open) => window.dash_clientside.set_props({ page: 'query', param: 'query' }, { value: open });
  document.addEventListener('click', ({ target }) => {
    if (target.closest?.('#query')) { query('open'); }
    if (target.closest?.('#query-close')) { window.dash_clientside.set_props({ page: 'query', param: 'sql' }, { value: '' }); query(''); }
    if (target.closest?.('#find')) { palette(); }
    if (target.closest?.('#views-dialog a')) { document.getElementById('views-dialog').close(); }
    views(target);
    const profile = target.closest?.('[data-profile], [data-with]')?.dataset;
    if (profile) { show(profile); }
    if (target.closest?.('#palette a, #palette button')) { document.getElementById('palette').close(); }
  });
  // Saved views: the server has them beside the profile, and learns here which address is shown.
  const shown = () => window.location.pathname + window.location.search;
  function views(target) {
    const ask = (data) => window.dash_clientside.set_props('views-asked', { data: { ...data, at: Date.now() } });
    const one = target.closest?.('button'), remove = one?.dataset.unsave;
    if (one?.id === 'views') { field('views-field', 'A note'); document.getElementById('views-dialog').showModal(); ask({}); }
    else if (one?.id === 'views-save') {
      const note = field('views-field', 'A note');
      ask({ note: note.value, address: shown() });
      note.value = '';
    }
    else if (one?.id === 'views-copy') { navigator.clipboard.writeText(window.location.origin + shown()); }
    else if (remove !== undefined) { ask({ remove: Number(remove) }); }
  }
  // Another profile on this page, or, where the page compares none, on Compare.
  function show({ profile, with: other }) {
    const page = window.location.pathname.replaceAll('/', '') || 'summary', here = new URLSearchParams(window.location.search);
    if (profile) { window.dash_clientside.set_props({ page, param: 'profile' }, { value: profile }); return; }
    if (['compare', 'costs', 'memory'].includes(page)) { window.dash_clientside.set_props({ page, param: 'with' }, { value: other }); return; }
    window.dash_clientside.set_props('url', { pathname: '/compare', search: '?' + new URLSearchParams({ profile: here.get('profile') || '0', with: other }) });
  }
  const actions = [
    ['Light or dark', press('theme')], ['Query in a drawer', () => query('open')], ['Keys', press('keys')],
    ['Show all of the time', () => window.ipuscopeTimeline.fit()], ['Mark the time', () => window.ipuscopeTimeline.mark()],
    ['Quickest split', press('rebalance-best')], ['Split as profiled', press('rebalance-profiled')],
  ];
  function listed(words) {
    const links = Array.from(document.querySelectorAll('nav.side a.nav:not(.unused)'));
    const pages = links.map((one) => [one.textContent, () => one.click(), 'page']);
    return [...pages, ...actions.map(([name, run]) => [name, run, 'action'])].filter(([name]) => name.toLowerCase().includes(words));
  }
  function actionsFor(words) {
    const box = document.getElementById('palette-actions');
    box.replaceChildren(...listed(words).map(([name, run, kind]) => {
      const button = document.createElement('button'), what = document.createElement('span');
      what.textContent = kind;
      button.append(what, name);
      button.addEventListener('click', run);
      return button;
    }));
  }
  // A field of a dialog, made once. Dash's own resets its value while one types.
  function field(id, words, typed) {
    const place = document.getElementById(id);
    if (place.firstChild) { return place.firstChild; }
    const made = document.createElement('input');
    made.placeholder = words;
    made.setAttribute('aria-label', words);
    if (typed) { made.addEventListener('input', () => typed(made.value)); }
    place.append(made);
    return made;
  }
  let pause = 0;
  const paletteField = () => field('palette-field', 'Find anything', (words) => {
    actionsFor(words.toLowerCase());
    clearTimeout(pause);
    pause = setTimeout(() => window.dash_clientside.set_props('palette-words', { data: words }), 150);
  });
  function palette() {
    const dialog = document.getElementById('palette');
    if (!dialog || dialog.open) { return; }
    const field = paletteField();
    dialog.showModal();
    field.select();
    actionsFor(field.value.toLowerCase());
  }
  document.addEventListener('keydown', (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === 'k') { event.preventDefault(); palette(); return; }
    const dialog = event.target.closest?.('#palette');
    if (!dialog) { return; }
    const choices = Array.from(dialog.querySelectorAll('a, button')), at = choices.indexOf(document.activeElement);
    if (event.key === 'ArrowDown') { choices[Math.min(choices.length - 1, at + 1)]?.focus(); event.preventDefault(); }
    else if (event.key === 'ArrowUp') { (choices[at - 1] || paletteField()).focus(); event.preventDefault(); }
    else if (event.key === 'Enter' && at < 0) { choices[0]?.click(); event.preventDefault(); }
    event.stopPropagation();
  });

  const time = window.ipuscopeTimeline;
  const keys = {
    a: () => time.move(-0.25, 1), d: () => time.move(0.25, 1), w: () => time.move(0, 0.5), s: () => time.move(0, 2),
    ArrowLeft: () => time.move(-0.25, 1), ArrowRight: () => time.move(0.25, 1),
    '+': () => time.move(0, 0.5), '=': () => time.move(0, 0.5), '-': () => time.move(0, 2),
    f: time.fit, 0: time.fit, m: time.mark, M: time.measure, p: time.pin, o: time.open, Escape: time.clear,
  };
  const asking = { ArrowDown: 1, ArrowUp: -1, Enter: 0 };  // of the figure in focus, and else what a browser does
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    const dialog = document.getElementById('shortcuts');
    if (document.querySelector('dialog[open]:not(#shortcuts)')) { return; }
    if (dialog && dialog.open) {
      if (event.key === '?') { dialog.close(); }
      return;
    }
    const at = event.target;
    if (at.closest && at.closest('input, textarea, select, [contenteditable], [role=combobox], [role=listbox]')) { return; }
    const links = Array.from(document.querySelectorAll('nav.side a.nav'));
    const link = links.find((one) => one.title.endsWith(`(${event.key})`));
    if (link) { link.click(); }
    else if (event.key === 'q') { query('open'); }
    else if (event.key === 'v') { event.preventDefault(); document.getElementById('views').click(); }  // no v in its field
    else if (event.key === 't') { document.getElementById('theme').click(); }
    else if (event.key === '?') { dialog.showModal(); }
    else if (event.key === '/') {
      const field = document.querySelector('main input[type=search], main input[type=text]');
      if (field) { field.focus(); event.preventDefault(); }
    }
    else if (event.key === 'n' || event.key === 'N') {
      document.getElementById(event.key === 'n' ? 'timeline-next' : 'timeline-previous')?.click();
    }
    else if (event.key in asking) { if (time.ask(asking[event.key])) { event.preventDefault(); } }
    else if (keys[event.key]) { keys[event.key](); event.preventDefault(); }
  });
})();

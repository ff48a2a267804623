// Figures of time in the browser: wheel, keys, marks, selection, and a click on anything. A figure says in layout.meta
// whose parameters it asks by (page, x, y), the unit of its x-axis (scale), how long the whole is (end, in cycles) and
// whether its rows are lanes (timeline, lanes). What is there is moved in the next frame; the server's answer refines it.
(function () {
  const put = (page, param, value) => window.dash_clientside.set_props({ page, param }, { value });
  const value = (param) => new URLSearchParams(window.location.search).get(param) || '';
  const metaOf = (plot) => plot?.layout?.meta || {};
  const figures = () => Array.from(document.querySelectorAll('.js-plotly-plot')).filter((plot) => metaOf(plot).page);
  const alike = (plot) => figures().filter((one) => String(metaOf(one).x) === String(metaOf(plot).x));
  // The figure in focus or under the pointer, or else the first that has time, or else the first.
  const main = () => {
    const focused = document.activeElement?.closest?.('.js-plotly-plot');
    const here = [focused, hovered].find((one) => one && document.contains(one) && metaOf(one).page);
    return here || figures().find((one) => metaOf(one).timeline) || figures()[0];
  };
  const drawn = (plot, axis) => plot._fullLayout[axis].range.map(Number);

  // -- moving what is there, until the server has drawn it anew ----------------------------------------
  const targets = new Map();  // by the parameters that a figure asks by: where it is moved to
  const followed = new WeakSet();

  function transform(plot, to) {
    const full = plot._fullLayout, axis = full.xaxis, [low, high] = drawn(plot, 'xaxis');
    const size = (to[1] - to[0]) || 1, scale = (high - low) / size, shift = (low - to[0]) / size * axis._length;
    const still = Math.abs(scale - 1) < 1e-9 && Math.abs(shift) < 1e-6;
    plot.classList.toggle('moving', !still);
    Object.values(full._plots).forEach((part) => {
      part.plot.attr('transform', `translate(${part.xaxis._offset + shift},${part.yaxis._offset}) scale(${scale},1)`);
      part.clipRect?.attr('transform', `translate(${-shift / scale},0) scale(${1 / scale},1)`);
    });
    plot.querySelectorAll('.layer-below .shapelayer, .shapelayer, .annotation').forEach((one) => {
      one.style.visibility = still ? '' : 'hidden';
    });
    plot.querySelectorAll('.xtick > text').forEach((tick) => {
      const at = axis._offset + (Number(tick.__data__?.x) - to[0]) / size * axis._length;
      tick.setAttribute('transform', `translate(${at},0)`);
      const inside = at >= axis._offset - 1 && at <= axis._offset + axis._length + 1;
      tick.style.visibility = inside ? '' : 'hidden';
    });
    frame(plot);
  }

  // -- the slice that was clicked: a frame around it, which moves with the figure ------------------------
  function frame(plot) {
    const meta = metaOf(plot), full = plot._fullLayout, pinned = document.querySelector('[data-pin]');
    const row = Math.round(Number(value('at').split(',')[1])), box = plot.querySelector('.svg-container');
    let drawn = plot.querySelector('.chosen-slice');
    if (!meta.rows || !pinned || !box || !full?.xaxis || !(row >= 0)) { drawn?.remove(); return; }
    const [begin, end] = pinned.dataset.pin.split(',').map(Number), [low, high] = windowOf(plot);
    const x = (cycle) => full.xaxis._length * Math.min(1, Math.max(0, (cycle - low) / ((high - low) || 1)));
    const [bottom, top] = full.yaxis.range.map(Number);
    const y = (at) => full.yaxis._length * Math.min(1, Math.max(0, (at - top) / (bottom - top)));
    if (end < low || begin > high || y(row + 0.45) <= y(row - 0.45)) { drawn?.remove(); return; }
    if (!drawn) { drawn = document.createElement('div'); drawn.className = 'chosen-slice'; box.append(drawn); }
    const wide = Math.max(4, x(end) - x(begin));
    Object.assign(drawn.style, { left: full.xaxis._offset + x(begin) - (wide > x(end) - x(begin) ? 2 : 0) + 'px',
      width: wide + 'px', top: full.yaxis._offset + y(row - 0.45) + 'px', height: y(row + 0.45) - y(row - 0.45) + 'px' });
  }

  function follow(plot) {
    if (followed.has(plot)) { return; }
    followed.add(plot);
    plot.on('plotly_afterplot', () => {
      const target = targets.get(String(metaOf(plot).x));
      if (!target) { transform(plot, drawn(plot, 'xaxis')); return; }
      const scale = metaOf(plot).scale || 1, range = drawn(plot, 'xaxis');
      const pixel = (range[1] - range[0]) / (plot._fullLayout.xaxis._length || 1);
      const to = target.range.map((one) => one * scale);
      const there = to.every((one, at) => Math.abs(one - range[at]) <= Math.max(1.5 * scale, pixel));
      if (there || performance.now() - target.since > 8000) {
        transform(plot, range);
        if (there) { targets.delete(String(metaOf(plot).x)); }
      } else {
        transform(plot, to);  // an answer to an earlier turn of the wheel
      }
    });
  }

  // Shows a window, in cycles (or whatever the parameters count), at once, and asks the server for it.
  function show(plot, low, high, whole) {
    const end = metaOf(plot).end;
    if (end && !whole) {
      const size = Math.max(1, Math.min(high - low, end));
      low = Math.max(0, Math.min(low, end - size));
      high = low + size;
    }
    const meta = metaOf(plot), key = String(meta.x), before = targets.get(key) || {};
    const target = { range: [low, high], since: performance.now(), asked: before.asked || 0, timer: before.timer };
    targets.set(key, target);
    requestAnimationFrame(() => alike(plot).forEach((one) => {
      follow(one);
      const at = targets.get(key);
      if (at) { transform(one, at.range.map((number) => number * (metaOf(one).scale || 1))); }
    }));
    clearTimeout(target.timer);
    const ask = () => {
      target.asked = performance.now();
      put(meta.page, meta.x[0], whole ? '' : String(Math.floor(low)));
      put(meta.page, meta.x[1], whole ? '' : String(Math.ceil(high)));
    };
    target.timer = setTimeout(ask, performance.now() - target.asked > 120 ? 0 : 60);
  }

  function windowOf(plot) {
    const target = targets.get(String(metaOf(plot).x)), scale = metaOf(plot).scale || 1;
    return target ? target.range : drawn(plot, 'xaxis').map((one) => one / scale);
  }

  function move(by, factor) {
    const plot = main();
    if (!plot) { return; }
    const [low, high] = windowOf(plot), span = high - low, middle = (low + high) / 2 + by * span;
    show(plot, middle - span * factor / 2, middle + span * factor / 2);
  }
  function fit() {
    const plot = main();
    if (!plot) { return; }
    if (metaOf(plot).end) { show(plot, 0, metaOf(plot).end, true); }
    else { window.Plotly.relayout(plot, { 'xaxis.autorange': true }); }
  }

  // -- where the pointer is ---------------------------------------------------------------------------
  function pointOf(plot, event) {
    const box = plot.getBoundingClientRect(), full = plot._fullLayout, axis = full.xaxis;
    const [low, high] = windowOf(plot);
    const part = (event.clientX - box.left - axis._offset) / axis._length;
    const down = (event.clientY - box.top - full.yaxis._offset) / full.yaxis._length;
    const [bottom, top] = drawn(plot, 'yaxis');
    return { x: low + part * (high - low), row: top + down * (bottom - top), part, down };
  }
  const plotAt = (event) => {
    const plot = event.target.closest?.('.js-plotly-plot');
    return plot && metaOf(plot).page && event.target.closest('.draglayer') ? plot : null;
  };
  let moved = null, hovered = null;
  document.addEventListener('mousemove', (event) => {
    const plot = plotAt(event);
    hovered = plot;
    moved = plot && metaOf(plot).timeline ? { plot, clientX: event.clientX, clientY: event.clientY } : null;
  }, { passive: true });

  // What is there now: the figure may have been zoomed by a key since the pointer was moved.
  const pointed = () => (moved && document.contains(moved.plot) ? { plot: moved.plot, ...pointOf(moved.plot, moved) } : null);

  // The wheel: along x; with Shift along y, where a figure can be zoomed there.
  document.addEventListener('wheel', (event) => {
    const plot = plotAt(event);
    if (!plot || event.ctrlKey) { return; }
    const meta = metaOf(plot), factor = Math.exp(Math.max(-1, Math.min(1, (event.deltaY || event.deltaX) / 400)));
    event.preventDefault();
    event.stopPropagation();
    if (event.shiftKey && meta.y) {
      const box = plot.getBoundingClientRect(), axis = plot._fullLayout.yaxis, [low, high] = drawn(plot, 'yaxis');
      const at = 1 - (event.clientY - box.top - axis._offset) / axis._length;
      const middle = low + Math.min(1, Math.max(0, at)) * (high - low);
      put(meta.page, meta.y[0], String(Math.floor(middle - (middle - low) * factor)));
      put(meta.page, meta.y[1], String(Math.ceil(middle + (high - middle) * factor)));
      return;
    }
    const [low, high] = windowOf(plot), at = Math.min(1, Math.max(0, pointOf(plot, event).part));
    const middle = low + at * (high - low);
    show(plot, middle - (middle - low) * factor, middle + (high - middle) * factor);
  }, { capture: true, passive: false });

  // -- a drag with Shift selects, a click asks --------------------------------------------------------
  let selecting = null, pressed = null;
  document.addEventListener('mousedown', (event) => {
    const plot = plotAt(event);
    if (!plot || event.button !== 0 || !metaOf(plot).timeline) { return; }
    pressed = { plot, x: event.clientX, y: event.clientY };
    if (!event.shiftKey) { return; }
    event.preventDefault();
    event.stopPropagation();
    const frame = document.createElement('div');
    frame.className = 'selecting';
    document.body.append(frame);
    selecting = { plot, frame, from: pointOf(plot, event), x: event.clientX, y: event.clientY };
  }, true);
  document.addEventListener('mousemove', (event) => {
    if (!selecting) { return; }
    const { frame, x, y } = selecting;
    Object.assign(frame.style, { left: Math.min(x, event.clientX) + 'px', top: Math.min(y, event.clientY) + 'px',
      width: Math.abs(event.clientX - x) + 'px', height: Math.abs(event.clientY - y) + 'px' });
  }, true);
  document.addEventListener('mouseup', (event) => {
    const moved = pressed && Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) > 4;
    if (selecting) {
      const { plot, frame, from } = selecting, to = pointOf(plot, event);
      frame.remove();
      selecting = null;
      if (moved) {
        const rows = metaOf(plot).rows || 0, limit = (row) => Math.max(0, Math.min(rows - 1, Math.round(row)));
        const [low, high] = [from.x, to.x].sort((a, b) => a - b);
        const span = [Math.max(0, Math.floor(low)), Math.min(metaOf(plot).end || Infinity, Math.ceil(high))];
        const lanes = rows ? [from.row, to.row].map(limit).sort((a, b) => a - b) : [];
        put(metaOf(plot).page, 'select', [...span, ...lanes].join(','));
      }
    } else if (pressed && !moved) {
      const at = pointOf(pressed.plot, event);
      put(metaOf(pressed.plot).page, 'at', Math.floor(at.x) + ',' + at.row.toFixed(2));
    }
    pressed = null;
  }, true);

  // -- lanes: a click on a name opens or closes it, P pins it ------------------------------------------
  // The figure whose lanes' names the pointer is over, between their lines too.
  function nameAt(event) {
    const plot = event.target.closest?.('.js-plotly-plot');
    if (!(metaOf(plot).lanes || []).length || event.target.closest('.modebar, .legend')) { return null; }
    const { part, down } = pointOf(plot, event);
    return part < 0 && down >= 0 && down <= 1 ? plot : null;
  }
  document.addEventListener('mousemove', (event) => {
    const over = nameAt(event);
    document.querySelectorAll('.over-name').forEach((one) => one !== over && one.classList.remove('over-name'));
    over?.classList.add('over-name');
  }, { passive: true });
  const list = (param) => value(param).split(',').filter((one) => one);
  function toggled(param, one) {
    const chosen = list(param);
    return chosen.includes(String(one)) ? chosen.filter((other) => other !== String(one)) : [...chosen, String(one)];
  }
  document.addEventListener('click', (event) => {
    const clear = event.target.closest?.('[data-clear]');
    if (clear && main()) { put(metaOf(main()).page, clear.dataset.clear, ''); return; }
    const pinned = event.target.closest?.('[data-pin]');
    if (pinned && main()) { pinSlice(pinned.dataset.pin.split(',')); return; }
    const plot = nameAt(event), lane = plot && metaOf(plot).lanes[Math.round(pointOf(plot, event).row)];
    if (lane && lane[1] >= 0) { hold(plot); put(metaOf(plot).page, 'opened', toggled('opened', lane[1]).join(',')); }
  });
  // The lane under the pointer, or, by keyboard, the one whose slice is asked after.
  function laneNow() {
    const pointer = pointed(), plot = pointer?.plot || focused(), row = pointer ? pointer.row : rowAsked();
    const lane = row >= 0 ? (metaOf(plot).lanes || [])[Math.round(row)] : null;
    return lane ? { page: metaOf(plot).page, shown: lane[0], group: lane[1] } : null;
  }
  // Lanes move when one is pinned, opened or closed: what is asked after stays on its own.
  let askedLane = null;
  function hold(plot) {
    const row = rowAsked(), lane = (metaOf(plot).lanes || [])[row];
    askedLane = row >= 0 && lane ? { lanes: String(metaOf(plot).lanes), shown: lane[0] } : null;
  }
  function settle() {
    const plot = askedLane && figures().find((one) => (metaOf(one).lanes || []).length);
    if (!plot || String(metaOf(plot).lanes) === askedLane.lanes) { return; }
    const row = metaOf(plot).lanes.findIndex((lane) => lane[0] === askedLane.shown), at = value('at').split(',');
    askedLane = null;
    if (row >= 0 && at.length === 2 && Math.round(Number(at[1])) !== row) { put(metaOf(plot).page, 'at', at[0] + ',' + row); }
  }
  // A pinned lane leaves the pointer: P again, before the pointer moves, is of the same lane.
  let last = null, here = [0, 0];
  document.addEventListener('mousemove', (event) => {
    if (event.clientX === here[0] && event.clientY === here[1]) { return; }  // the page moved, not it
    here = [event.clientX, event.clientY];
    last = null;
  }, true);
  function pin() {
    const lane = last?.lane || laneNow();
    hold(pointed()?.plot || focused());
    if (lane) { put(lane.page, 'pins', toggled('pins', lane.shown)); }
    last = lane && pointed() ? { lane } : null;
  }
  function open() {
    const lane = laneNow();
    hold(pointed()?.plot || focused());
    if (lane && lane.group >= 0) { put(lane.page, 'opened', toggled('opened', lane.group).join(',')); }
  }

  // -- by keyboard: what is in the middle of the figure in focus, lane by lane --------------------------
  const focused = () => {
    const plot = document.activeElement;
    return plot?.classList?.contains('js-plotly-plot') && metaOf(plot).timeline ? plot : null;
  };
  const rowAsked = () => (value('at') ? Math.round(Number(value('at').split(',')[1])) : -1);
  function ask(by) {
    const plot = focused(), rows = metaOf(plot).rows;
    if (!plot || (by && !rows)) { return false; }
    const [low, high] = windowOf(plot), row = rows ? Math.max(0, Math.min(rows - 1, Math.max(by ? -1 : 0, rowAsked()) + by)) : 0;
    put(metaOf(plot).page, 'at', Math.floor((low + high) / 2) + ',' + row);
    return true;
  }

  // A slice is pinned by marks at both of its ends, and unpinned where both are there.
  function pinSlice(ends) {
    const marks = list('marks'), both = ends.every((one) => marks.includes(one));
    const others = marks.filter((one) => !ends.includes(one));
    put(metaOf(main()).page, 'marks', (both ? others : [...others, ...ends]).join(','));
  }

  // -- marks: M at the pointer, or in the middle; with Shift what is between the last two is selected ---
  function mark() {
    const pointer = pointed(), plot = pointer?.plot || figures().find((one) => metaOf(one).timeline);
    if (!plot) { return; }
    const [low, high] = windowOf(plot), near = (high - low) * 6 / (plot._fullLayout.xaxis._length || 600);
    const at = Math.min(metaOf(plot).end || Infinity, Math.max(0, Math.round(pointer ? pointer.x : (low + high) / 2)));
    const times = list('marks').map(Number), old = times.find((one) => Math.abs(one - at) <= near);
    const marks = old === undefined ? [...times, at] : times.filter((one) => one !== old);
    put(metaOf(plot).page, 'marks', marks.join(','));
  }
  function measure() {
    const plot = main(), marks = list('marks').map(Number).slice(-2).sort((a, b) => a - b);
    if (plot && marks.length === 2) { put(metaOf(plot).page, 'select', marks.join(',')); }
  }
  function clear() {
    const plot = main();
    if (!plot) { return; }
    if (value('select')) { put(metaOf(plot).page, 'select', ''); return; }
    if (value('at')) { put(metaOf(plot).page, 'at', ''); }
    if (metaOf(plot).page === 'timeline' && value('step')) { put('timeline', 'step', ''); }
  }

  window.ipuscopeTimeline = { move, fit, mark, measure, pin, open, ask, clear, frames: () => { settle(); figures().forEach(frame); } };
})();

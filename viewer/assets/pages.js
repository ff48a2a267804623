// What clicks on pages' figures and tables mean: functions of Dash's callbacks, by the names that `common.script` takes.
window.dash_clientside = window.dash_clientside || {};

// Where an axis was zoomed or dragged to, in units of ``meta.scale``; "" for all, cut at the ends.
const zoomOf = (axis) => (relayout, figure) => {
  const none = [window.dash_clientside.no_update, window.dash_clientside.no_update];
  if (!relayout) { return none; }
  if (relayout[`${axis}.autorange`]) { return ['', '']; }
  const low = relayout[`${axis}.range[0]`] ?? (relayout[`${axis}.range`] || [])[0];
  const high = relayout[`${axis}.range[1]`] ?? (relayout[`${axis}.range`] || [])[1];
  if (low === undefined || high === undefined) { return none; }
  const meta = ((figure || {}).layout || {}).meta || {};
  const scale = axis === 'xaxis' && meta.scale || 1;
  const end = (axis === 'xaxis' ? meta.end : meta.high) || Infinity;
  const ends = [Math.max(0, Math.floor(low / scale)), Math.min(end, Math.ceil(high / scale))];
  return ends[0] < ends[1] ? ends.map(String) : ['', ''];
};

// The frame of the model graph is as high as the graph. Another graph is drawn as small as its width needs; if one could
// not read it then, its first node is in sight.
function asHighAsTheGraph(graph) {
  const tops = graph.nodes(':orphan'), frame = document.getElementById('model-graph-frame');
  const at = (one) => `${one.position('x')},${one.position('y')}`;
  if (!tops.length || !frame || (tops.length > 1 && tops.every((one) => at(one) === at(tops[0])))) { return; }  // not laid out yet
  const box = graph.elements().boundingBox(), most = graph.height();
  const shown = tops.map((one) => one.data('path')).join(), before = graph.scratch('shown') || {}, again = before.of === shown;
  const fit = (graph.width() - 24) / box.w, zoom = again ? before.zoom : fit < 0.5 ? 0.9 : Math.min(0.9, fit), whole = zoom * box.h + 24;
  const high = Math.max(110, Math.min(most, whole));
  frame.style.height = `${high}px`;
  if (again && (whole > most || graph.zoom() !== zoom)) { return; }  // else the frame's new height has it in sight again
  graph.scratch('shown', { of: shown, zoom });
  const first = tops.min((one) => one.position('x')).ele.position('y');
  const y = whole <= most ? high / 2 - zoom * (box.y1 + box.y2) / 2 : high / 2 - zoom * first;
  graph.viewport({ zoom, pan: { x: again ? graph.pan().x : 12 - zoom * box.x1, y } });
}
function showAll(graph) {
  const box = graph.elements().boundingBox(), frame = document.getElementById('model-graph-frame').getBoundingClientRect();
  const zoom = Math.min(1, (frame.width - 16) / box.w, (frame.height - 16) / box.h);
  const pan = { x: (frame.width - zoom * (box.x1 + box.x2)) / 2, y: (frame.height - zoom * (box.y1 + box.y2)) / 2 };
  graph.viewport({ zoom, pan });
}

window.dash_clientside.pages = {
  zoom_x: zoomOf('xaxis'),
  zoom_y: zoomOf('yaxis'),

  compared: function (click, at) {
    const point = click && click.points && click.points[0], none = window.dash_clientside.no_update;
    const path = (at || '').split('›').filter((one) => one);
    if (!point || path.length > 1) { return none; }
    if ('AB'.includes(point.y) || point.y.endsWith(' more')) { return none; }
    return [...path, point.y].join('›');
  },

  // A click on a part shows it alone; a click on the topmost, its parent.
  flamePart: function (click, at) {
    const point = click && click.points && click.points[0];
    if (!point || point.id === undefined) { return window.dash_clientside.no_update; }
    const nameOf = (id) => (id === 'all' || !id ? '' : String(id));
    return nameOf(point.id) === (at || '') ? nameOf(point.parent) : nameOf(point.id);
  },

  // A click on a point of the roofline: its operator.
  rooflinePoint: function (click) {
    const point = click && click.points && click.points[0];
    const isPoint = point && point.id === undefined && Number.isInteger(point.customdata);
    return isPoint ? String(point.customdata) : window.dash_clientside.no_update;
  },

  // A click on a row opens or closes it; an operator or a step also gets details.
  costRow: function (click, toggled) {
    const none = window.dash_clientside.no_update;
    if (!click || !click.rowId) { return [none, none, none]; }
    const id = String(click.rowId), number = id.slice(1);
    if (id[0] === 's') { return [none, none, number]; }
    const open = new Set((toggled || '').split(',').filter((one) => one));
    if (!open.delete(id)) { open.add(id); }
    const chosen = id[0] === 'o';
    return [Array.from(open).join(','), chosen ? number : none, chosen ? '' : none];
  },

  tile: function (line, chip, variable) {
    const by = window.dash_clientside.callback_context.triggered[0];
    const at = by && by.value && by.value.points && by.value.points[0];
    if (!at) { return window.dash_clientside.no_update; }
    return at.customdata !== undefined ? at.customdata : Math.round(at.x);
  },

  variable: function (clicks) {
    const by = window.dash_clientside.callback_context.triggered[0];
    const none = window.dash_clientside.no_update;
    return by && by.value && by.value.rowId !== undefined ? String(by.value.rowId) : none;
  },

  livePoint: function (heat, steps) {
    const none = [window.dash_clientside.no_update, window.dash_clientside.no_update];
    const by = window.dash_clientside.callback_context.triggered[0];
    const at = by && by.value && by.value.points && by.value.points[0];
    if (!at) { return none; }
    if (by.prop_id.startsWith('liveness-steps')) { return [Math.floor(at.x), none[1]]; }
    return at.curveNumber === 0 ? [Math.floor(at.x), Math.floor(at.y)] : none;
  },

  podIpu: function (click) {
    const one = click && click.points && click.points[0];
    return one && one.customdata ? String(one.customdata[1]) : window.dash_clientside.no_update;
  },

  // Each border of stages onto the edge of the graph that it cuts, whenever that is drawn anew.
  borders: function () {
    const hook = (again) => {
      const graph = window.cy;  // by dash-cytoscape
      if (!graph?.container()?.isConnected) {
        if (again) { setTimeout(() => hook(again - 1), 100); }
        return;
      }
      graph.off('render', window.ipuscopeBorders).on('render', window.ipuscopeBorders);
      graph.off('layoutstop').on('layoutstop', () => { asHighAsTheGraph(graph); });
      graph.off('dbltap').on('dbltap', (event) => { if (event.target === graph) { showAll(graph); } });
      asHighAsTheGraph(graph);
      requestAnimationFrame(window.ipuscopeBorders);  // of the row, which is there then
    };
    hook(100);
  },

  overviewPart: function (selected, figure) {
    const none = [window.dash_clientside.no_update, window.dash_clientside.no_update];
    const range = selected && selected.range && selected.range.x;
    if (!range) { return none; }
    const { scale, end } = figure.layout.meta;
    const [low, high] = range.map((at) => at / scale).sort((a, b) => a - b);
    return [String(Math.max(0, Math.floor(low))), String(Math.min(end, Math.ceil(high)))];
  },

  // Marks the part that is drawn on the overview: a shape, without drawing its curve again.
  markOverview: function (drawn, figure) {
    const mark = (again) => {
      const plot = document.querySelector('#timeline-overview .js-plotly-plot');
      if (!plot || !plot.layout || !plot.layout.meta) {
        if (again) { setTimeout(() => mark(again - 1), 150); }  // it is not drawn yet
        return;
      }
      const scale = plot.layout.meta.scale;
      const whole = { type: 'rect', xref: 'x', yref: 'paper', y0: 0, y1: 1 };
      const shapes = drawn && drawn.length ? [{ ...whole,
        x0: drawn[0] * scale, x1: drawn[1] * scale, fillcolor: '#808a96', opacity: 0.35,
        line: { width: 1, color: '#808a96' } }] : [];
      window.Plotly.relayout(plot, { shapes, selections: [] });
    };
    setTimeout(() => mark(40), 150);
    return drawn;
  },

  // A click on "Theme" changes it; the page learns which it is.
  theme: function (clicks) {
    const root = document.documentElement;
    if (clicks) {
      root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
      try { localStorage.setItem('ipuscope-theme', root.dataset.theme); } catch { /* none */ }
    }
    return {theme: root.dataset.theme};
  },
};

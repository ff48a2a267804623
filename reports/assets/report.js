async function unpacked(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).text();
}
// Names above the lanes of a pipeline that neither touch each other nor leave the figure: of phases
// first the numbers go, then names that still have no room.
const pen = document.createElement('canvas').getContext('2d');
function apart({ annotations, legend, margin, xaxis }, width) {
  if (!(legend?.x < 0) || !annotations) { return annotations; }
  const [low, high] = xaxis.range, lanes = width - margin.l - margin.r;
  const plain = (words) => words.replace(/<[^>]*>/g, '');
  const placed = (notes) => notes.map((one) => {
    pen.font = 'bold ' + one.font.size + 'px ' + getComputedStyle(document.body).fontFamily;
    const half = pen.measureText(plain(one.text)).width / 2 + 4;
    const at = (one.x - low) / (high - low) * lanes;
    const inside = Math.max(half - margin.l, Math.min(at, lanes + margin.r - half));
    return { one: { ...one, xshift: inside - at }, from: inside - half, to: inside + half };
  });
  const free = (row) => row.every((one, i) => !i || row[i - 1].to <= one.from);
  return [...new Set(annotations.map((one) => one.yshift))].flatMap((height) => {
    const long = placed(annotations.filter((one) => one.yshift === height));
    if (free(long)) { return long; }
    const short = placed(long.map(({ one }) => (
      { ...one, text: one.text.replace(/(<.b>).*/, '$1'), xshift: 0 })));
    let last = -Infinity;
    return short.filter((one) => one.from >= last && (last = one.to, true));
  }).map(({ one }) => one);
}
// In a narrow window names are short: of lanes the first line; and legends have small letters.
function fitted({ data, layout }, id) {
  const width = document.getElementById(id).clientWidth;
  if (width > 620) { return { ...layout, annotations: apart(layout, width) }; }
  if (layout.yaxis?.type === 'category') {
    const names = [...new Set(data.flatMap((one) => Array.from(one.y || [])))];
    const ticktext = names.map((name) => (name.length > 15 ? name.slice(0, 14) + '…' : name));
    const entries = layout.showlegend === false ? 0 : data.filter((one) => one.name).length;
    return { ...layout, yaxis: { ...layout.yaxis, tickvals: names, ticktext },
      height: layout.height + 16 * Math.max(0, entries - 4) };
  }
  if (!(layout.legend?.x < 0)) { return layout; }
  const { margin, legend, height } = layout, ticks = layout.yaxis.ticktext || [];
  const short = ticks.map((words) => words.split('<br>')[0]);
  const letters = Math.max(6, ...short.map((words) => words.replace(/<[^>]*>/g, '').length));
  const l = 34 + 8 * letters, lanes = Math.max(1, width - l - margin.r);
  const names = new Set(data.filter((one) => one.showlegend !== false).map((one) => one.name));
  const t = 46 + 19 * Math.ceil(names.size / Math.max(1, Math.floor((width - margin.r) / 165)));
  const annotations = apart({ ...layout, margin: { ...margin, l } }, width);
  return { ...layout, height: height + t - margin.t, margin: { ...margin, l, t }, annotations,
    yaxis: { ...layout.yaxis, ticktext: short },
    legend: { ...legend, x: -0.9 * l / lanes, indentation: -15, font: { size: 11 } } };
}
(async () => {
  const note = document.getElementById('note');
  try {
    const script = document.createElement('script');
    script.textContent = await unpacked('plotly');
    document.head.append(script);
    const figures = JSON.parse(await unpacked('figures'));
    const config = { displaylogo: false, showSendToCloud: false, responsive: true,
      scrollZoom: false };
    const theme = () => document.documentElement.dataset.theme;
    const one = async (figure, id) => Plotly.react(id, figure.data, fitted(figure, id), config);
    // A window that changes its size meanwhile can make plotly fail: once more, then.
    const draw = async () => {
      for (const [i, figure] of figures[theme()].entries()) {
        const id = 'figure-' + i, folded = document.getElementById(id).closest('details');
        folded.ontoggle = draw;  // what is folded has no width to be drawn in
        if (folded.open) { await one(figure, id).catch(() => one(figure, id)); }
      }
    };
    document.getElementById('theme').onclick = () => {
      const root = document.documentElement;
      root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
      draw();
    };
    let drawn = innerWidth, soon = 0;
    addEventListener('resize', () => {
      clearTimeout(soon);
      soon = setTimeout(() => {
        if (innerWidth === drawn) { return; }
        drawn = innerWidth;
        draw();
      }, 200);
    });
    await draw();
    note.remove();
  } catch (error) {
    const old = typeof DecompressionStream === 'undefined';
    note.textContent = 'The figures could not be drawn (' + error + ').'
      + (old ? ' A browser from 2023 or later is needed.' : ' Load the page anew.');
  }
})();

// Small charts, drawn from points and colours.

const CHART = { width: 320, height: 150, left: 38, right: 8, top: 8, bottom: 20 };

function tickStep(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
}

function ticks(low, high, wanted) {
  const step = tickStep(low, high, wanted);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

function frame(low, high, first, last) {
  const x = (at) => CHART.left + ((at - first) / (last - first || 1)) * (CHART.width - CHART.left - CHART.right);
  const y = (at) => CHART.height - CHART.bottom - ((at - low) / (high - low || 1)) * (CHART.height - CHART.top - CHART.bottom);
  const picture = svg("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img" });
  for (const at of ticks(low, high, 4)) {
    picture.append(
      svg("line", { class: "grid", x1: CHART.left, x2: CHART.width - CHART.right, y1: y(at), y2: y(at) }),
      svg("text", { class: "axis", x: CHART.left - 4, y: y(at) + 3, "text-anchor": "end" }, number(at)),
    );
  }
  return { picture, x, y };
}

function bottomAxis(picture, x, values) {
  for (const at of values) {
    picture.append(svg("text", { class: "axis", x: x(at), y: CHART.height - 6, "text-anchor": "middle" }, number(at)));
  }
}

function figure(title, legend, picture) {
  const head = el("figcaption", "", el("b", "", title), legend.map(([name, style]) => el("span", "key " + style, name)));
  return el("figure", "chart", head, picture);
}

// series: [{name, style, points: [[x, y], ...]}]; null for fewer than two points.
function lineChart(title, series) {
  const points = series.flatMap((one) => one.points);
  if (points.length < 2) return null;
  const xs = points.map((point) => point[0]);
  const ys = points.map((point) => point[1]);
  let low = ys.reduce((a, b) => Math.min(a, b));
  let high = ys.reduce((a, b) => Math.max(a, b));
  if (low >= 0 && low < high * 0.6) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const step = tickStep(low, high, 4);
  [low, high] = [Math.floor(low / step) * step, Math.ceil(high / step - 1e-9) * step];
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const { picture, x, y } = frame(low, high, first, last);
  bottomAxis(picture, x, ticks(first, last, 5).filter(Number.isInteger));
  for (const one of series) {
    const path = one.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
    picture.append(svg("polyline", { class: "line " + one.style, points: path }));
    if (one.points.length < 30) {
      for (const point of one.points) picture.append(svg("circle", { class: "dot " + one.style, cx: x(point[0]), cy: y(point[1]), r: 2 }));
    }
  }
  const cursor = svg("line", { class: "cursor", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  picture.append(cursor);
  picture.addEventListener("mousemove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = first + (((event.clientX - box.left) / box.width) * CHART.width - CHART.left) / (CHART.width - CHART.left - CHART.right) * (last - first);
    const nearest = xs.reduce((best, one) => (Math.abs(one - at) < Math.abs(best - at) ? one : best));
    cursor.setAttribute("x1", x(nearest));
    cursor.setAttribute("x2", x(nearest));
    cursor.setAttribute("visibility", "visible");
    const parts = series.flatMap((one) => one.points.filter((point) => point[0] === nearest).map((point) => `${one.name} ${number(point[1], 4)}`));
    showTip(event, `step ${nearest}: ${parts.join(", ")}`);
  });
  picture.addEventListener("mouseleave", () => {
    cursor.setAttribute("visibility", "hidden");
    hideTip();
  });
  return figure(title, series.length > 1 ? series.map((one) => [one.name, one.style]) : [], picture);
}

// Shares of each kind at each step. rows: [[x, {kind: count}], ...]; kinds: [[name, style], ...]
function shareChart(title, rows, kinds) {
  const used = kinds.filter(([name]) => rows.some(([, counts]) => counts[name]));
  const first = rows[0][0];
  const last = rows[rows.length - 1][0];
  const gap = rows.length > 1 ? Math.min(...rows.slice(1).map(([at], place) => at - rows[place][0])) : 1;
  const { picture, x, y } = frame(0, 1, first - gap / 2, last + gap / 2);
  bottomAxis(picture, x, ticks(first, last, 5).filter(Number.isInteger));
  for (const [at, counts] of rows) {
    const total = Object.values(counts).reduce((a, b) => a + b, 0);
    let below = 0;
    for (const [name, style] of used) {
      const share = (counts[name] || 0) / total;
      if (!share) continue;
      const width = Math.max(0.5, (x(at + gap) - x(at)) * 0.92);
      const bar = svg("rect", { class: "area " + style, x: x(at) - width / 2, width, y: y(below + share), height: y(below) - y(below + share) });
      bar.addEventListener("mousemove", (event) => showTip(event, `step ${at}: ${name} ${number(share * 100, 1)} % of ${plural(total, "episode")}`));
      bar.addEventListener("mouseleave", hideTip);
      picture.append(bar);
      below += share;
    }
  }
  return figure(title, used, picture);
}

function histogram(title, values) {
  const low = values.reduce((a, b) => Math.min(a, b), 0);
  const high = values.reduce((a, b) => Math.max(a, b), 1);
  const bins = new Array(20).fill(0);
  for (const one of values) bins[Math.min(19, Math.floor(((one - low) / (high - low)) * 20))] += 1;
  const most = bins.reduce((a, b) => Math.max(a, b));
  const { picture, x, y } = frame(0, most, low, high);
  bottomAxis(picture, x, ticks(low, high, 5));
  bins.forEach((size, place) => {
    const from = low + ((high - low) * place) / 20;
    const to = low + ((high - low) * (place + 1)) / 20;
    if (!size) return;
    const bar = svg("rect", { class: "area c0", x: x(from) + 0.5, width: x(to) - x(from) - 1, y: y(size), height: y(0) - y(size) });
    bar.addEventListener("mousemove", (event) => showTip(event, `${plural(size, "episode")} from ${number(from)} to ${number(to)}`));
    bar.addEventListener("mouseleave", hideTip);
    picture.append(bar);
  });
  return figure(title, [], picture);
}

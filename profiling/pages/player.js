// Plays a walk through tiles that `algorithm_model.player_data` prepared. All texts and numbers come from
// there; this file draws them and keeps the time. Without a request to the server a step takes no network.

const HTML_PARTS = ["first", "back", "play", "next", "slider", "speed", "title", "say", "picture"];
const TALLEST_PX = 500;
const WIDEST_CELL_PX = 20;
const GAP = 2; // cells between two matrices
const NAME_PX = 62, BESIDE_PX = 12; // of the sums: the least width of one, and what is free beside it
const BLUE = [0, 114, 178], ORANGE = [213, 94, 0];

export default function (component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".player");
  if (root.dataset.id === data.id) return; // the same walk: keep the step
  root.dataset.id = data.id;
  clearInterval(root.timer);
  root.timer = undefined;
  const at = Object.fromEntries(HTML_PARTS.map((name) => [name, root.querySelector("." + name)]));
  const frames = data.frames;
  let now = Math.min(Math.max(0, data.start), frames.length - 1);

  const show = (step) => {
    now = Math.min(Math.max(0, step), frames.length - 1);
    const frame = frames[now];
    at.slider.value = now;
    at.slider.setAttribute("aria-valuetext", frame.title);
    at.title.textContent = frame.title;
    at.say.textContent = frame.say;
    for (const name of ["chip", "read", "write"]) root.querySelector("." + name).textContent = frame[name];
    frame.counters.forEach(({ text, share }, i) => {
      const line = root.querySelector(".counters").children[i];
      line.querySelector(".amount").textContent = text;
      line.querySelector(".bar").style.width = Math.min(100, 100 * share) + "%";
    });
    fillTable(root.querySelector("table"), frame.table);
    draw(root, data, now);
    at.back.disabled = at.first.disabled = now === 0;
    at.next.disabled = now === frames.length - 1;
    if (root.timer === undefined) keepInAddress(root, now);
  };

  const pause = () => {
    clearInterval(root.timer);
    root.timer = undefined;
    keepInAddress(root, now);
    at.play.textContent = "Play";
    at.say.setAttribute("aria-live", "polite");
  };
  const play = () => {
    if (now === frames.length - 1) show(0);
    at.play.textContent = "Pause";
    at.say.setAttribute("aria-live", "off"); // a screen reader could not keep up
    root.timer = setInterval(() => {
      if (now === frames.length - 1 || !root.isConnected) pause();
      else show(now + 1);
    }, 1000 / Number(at.speed.value));
  };

  at.slider.max = frames.length - 1;
  at.slider.oninput = () => (pause(), show(Number(at.slider.value)));
  at.first.onclick = () => (pause(), show(0));
  at.back.onclick = () => (pause(), show(now - 1));
  at.next.onclick = () => (pause(), show(now + 1));
  at.play.onclick = () => (root.timer === undefined ? play() : pause());
  at.speed.onchange = () => {
    if (root.timer === undefined) return;
    pause();
    play();
  };
  for (const button of root.querySelectorAll(".jump")) {
    button.onclick = () => (pause(), show(data.begins[button.value]));
  }
  const again = () => draw(root, data, now);
  const size = new ResizeObserver(again);
  size.observe(root);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", again);
  pause();
  show(now);
  return () => {
    clearInterval(root.timer);
    clearTimeout(root.address);
    size.disconnect();
    scheme.removeEventListener("change", again);
    root.dataset.id = "";
  };
}

// The address of the page leads to this step, counted from 1; without one to the first. Once the hand rests:
// browsers refuse a hundred changes in half a minute.
function keepInAddress(root, step) {
  clearTimeout(root.address);
  root.address = setTimeout(() => {
    const address = new URL(location.href);
    if (step) address.searchParams.set("step", step + 1);
    else address.searchParams.delete("step");
    history.replaceState(history.state, "", address);
  }, 300);
}

function fillTable(table, { head, rows }) {
  const cells = (row, tag, texts) =>
    texts.forEach((text) => {
      const cell = document.createElement(tag);
      cell.textContent = text;
      row.append(cell);
    });
  table.replaceChildren();
  cells(table.createTHead().insertRow(), "th", head);
  const body = table.createTBody();
  rows.forEach((texts) => cells(body.insertRow(), "td", texts));
}

// What memory holds before step `end + 1`: outputs that are written, and sums that went back to memory.
function memoryAt(data, end) {
  const blank = () => data.inputs.q.map((row) => row.map(() => undefined));
  const held = { out: blank(), dq: blank(), dk: blank(), dv: blank() };
  const put = (target, span, rows) => rows.forEach((row, i) => (target[span[0] + i] = row));
  const backward = data.frames[end].direction === "bwd";
  if (backward) held.out = data.outputs.out;
  for (let i = backward ? data.begins.bwd : 0; i <= end; i++) {
    const { rows, cols, blocks } = data.frames[i];
    if (backward) {
      put(held.dq, rows, blocks.dq);
      put(held.dk, cols, blocks.dk);
      put(held.dv, cols, blocks.dv);
    } else {
      put(held.out, rows, data.frames[i].last ? data.outputs.out.slice(...rows) : blocks.out);
    }
  }
  return held;
}

function draw(root, data, now) {
  const frame = data.frames[now];
  const backward = frame.direction === "bwd";
  const n = data.inputs.q.length, d = data.inputs.q[0].length;
  const held = memoryAt(data, now);
  const turned = (x) => x[0].map((_, column) => x.map((row) => row[column]));
  const left = backward ? [["Q", data.inputs.q], ["dO", data.inputs.dout]] : [["Q", data.inputs.q]];
  const right = backward ? [["dQ", held.dq]] : [["O", held.out]];
  const above = backward ? [["Kᵀ", data.inputs.k], ["Vᵀ", data.inputs.v]] : [["Kᵀ", data.inputs.k]];
  const below = backward ? [["dKᵀ", held.dk], ["dVᵀ", held.dv]] : [["Vᵀ", data.inputs.v]];
  const wide = (left.length + right.length) * (d + GAP) + n;
  const high = (above.length + below.length) * (d + GAP) + n;
  const room = root.querySelector(".picture").clientWidth;
  const label = 18;
  const cell = Math.max(1, Math.min(WIDEST_CELL_PX, Math.floor(Math.min(
    (room - label * 2) / wide, (TALLEST_PX - label * (above.length + below.length)) / high))));
  const pen = canvas(root.querySelector(".matrices"), wide * cell + 2 * label,
    high * cell + label * (above.length + below.length + 1), root);

  let x = 0;
  const top = above.length * (d * cell + label + GAP * cell) + label;
  const inside = left.length * (d + GAP) * cell;
  const rowsOn = [frame.rows, [0, d]], colsOn = [[0, d], frame.cols];
  for (const [name, values] of left) {
    matrix(pen, name, values, x, top, cell, rowsOn);
    x += (d + GAP) * cell;
  }
  let y = label;
  for (const [name, values] of above) {
    matrix(pen, name, turned(values), inside, y, cell, colsOn);
    y += d * cell + label + GAP * cell;
  }
  scores(pen, data, now, inside, top, cell);
  y = top + n * cell + label + GAP * cell / 2;
  for (const [name, values] of below) {
    matrix(pen, name, turned(values), inside, y, cell, colsOn);
    y += d * cell + label;
  }
  x = inside + (n + GAP) * cell;
  for (const [name, values] of right) matrix(pen, name, values, x, top, cell, rowsOn);
  beforeAndAfter(root, frame, room);
}

function canvas(element, width, height, root) {
  const ratio = window.devicePixelRatio || 1;
  element.width = width * ratio;
  element.height = height * ratio;
  element.style.width = width + "px";
  element.style.height = height + "px";
  const pen = element.getContext("2d");
  const style = getComputedStyle(root);
  pen.scale(ratio, ratio);
  pen.font = "13px " + style.fontFamily;
  pen.ink = style.color;
  return pen;
}

function box(pen, x, y, width, height, alpha, line = 1) {
  pen.globalAlpha = alpha;
  pen.strokeStyle = pen.ink;
  pen.lineWidth = line;
  pen.strokeRect(x + 0.5, y + 0.5, width, height);
  pen.globalAlpha = 1;
}

function largest(values) {
  let most = 0;
  for (const row of values) for (const value of row ?? []) if (value) most = Math.max(most, Math.abs(value));
  return most || 1;
}

// A pixel a cell on a canvas of its own, then enlarged: filling each cell would take a hundred times as long.
function cells(pen, values, x, y, cell, most, alphaAt) {
  const rows = values.length, columns = values[0].length;
  const image = new ImageData(columns, rows);
  values.forEach((row, i) => row.forEach((value, j) => {
    if (value === undefined || value === null) return;
    const strength = alphaAt(i, j) * Math.min(1, 0.04 + 0.96 * Math.abs(value) / most);
    image.data.set([...(value < 0 ? BLUE : ORANGE), 255 * strength], 4 * (i * columns + j));
  }));
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d").putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, x, y, columns * cell, rows * cell);
}

// A matrix with the block that is on chip in full colour and framed, the rest of it pale.
function matrix(pen, name, values, x, y, cell, [rows, cols]) {
  const within = (i, j) => i >= rows[0] && i < rows[1] && j >= cols[0] && j < cols[1];
  pen.fillStyle = pen.ink;
  pen.fillText(name, x + 1, y - 5);
  cells(pen, values, x, y, cell, largest(values), (i, j) => (within(i, j) ? 1 : 0.3));
  box(pen, x, y, values[0].length * cell, values.length * cell, 0.35);
  box(pen, x + cols[0] * cell, y + rows[0] * cell, (cols[1] - cols[0]) * cell, (rows[1] - rows[0]) * cell, 1, 2);
}

// The tile's scores (forward) or probabilities (backward); tiles that are done left nothing behind.
function scores(pen, data, now, x, y, cell) {
  const frame = data.frames[now], n = data.inputs.q.length;
  pen.fillStyle = pen.ink;
  pen.fillText(frame.direction === "bwd" ? "P: this tile only" : "S: this tile only", x + 1, y - 5);
  for (let i = data.begins[frame.direction]; i < now; i++) {
    const { rows, cols } = data.frames[i];
    pen.globalAlpha = 0.1;
    pen.fillRect(x + cols[0] * cell, y + rows[0] * cell,
      (cols[1] - cols[0]) * cell - 1, (rows[1] - rows[0]) * cell - 1);
    pen.globalAlpha = 1;
  }
  const { rows, cols } = frame;
  const values = frame.blocks.scores ?? frame.blocks.probs;
  cells(pen, values, x + cols[0] * cell, y + rows[0] * cell, cell, largest(values), () => 1);
  box(pen, x, y, n * cell, n * cell, 0.35);
  box(pen, x + cols[0] * cell, y + rows[0] * cell, (cols[1] - cols[0]) * cell, (rows[1] - rows[0]) * cell, 1, 2);
}

// The sums that a tile changes, side by side on one scale.
function beforeAndAfter(root, frame, room) {
  const shown = frame.sums.map(([name, block]) => [name, frame.blocks[block]]);
  const high = Math.max(...shown.map(([, values]) => values.length));
  const columns = shown.reduce((sum, [, values]) => sum + values[0].length, 0);
  const cell = Math.max(2, Math.min(12, Math.floor((Math.min(room, 420) - BESIDE_PX * shown.length) / columns)));
  const widths = shown.map(([, values]) => Math.max(NAME_PX, values[0].length * cell) + BESIDE_PX);
  const pen = canvas(root.querySelector(".sums"), widths.reduce((a, b) => a + b), high * cell + 24, root);
  const most = frame.direction === "fwd" ? Math.max(...shown.map(([, values]) => largest(values))) : undefined;
  let x = 0;
  shown.forEach(([name, values], i) => {
    pen.fillStyle = pen.ink;
    pen.fillText(name, x + 1, 14);
    cells(pen, values, x, 20, cell, most ?? largest(values), () => 1);
    box(pen, x, 20, values[0].length * cell, values.length * cell, 0.35);
    x += widths[i];
  });
}

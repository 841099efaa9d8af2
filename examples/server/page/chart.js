// The chart of a lane: above, each request as a mark; below, what was admitted and what the limit counts. Between them,
// where requests are delayed, the instants at which they proceed.

const SVG = 'http://www.w3.org/2000/svg';

// The layout, in pixels. Marks stand on a line, and columns of marks are `COLUMN` apart.
const HEIGHT = 168;
const LEFT = 34;
const RIGHT = 10;
const MARKS = { top: 8, base: 72 };
const TURNS = { top: 76 };
const COUNTS = { top: 88, base: 146 };
const COLUMN = 6;
const MARK = 4;

/** The most lines that mark the edges of windows. */
const MOST_EDGES = 64;

export class Chart {
  #svg;
  #lane;
  #plot;
  #scroll;
  #layers = {};
  #labels;
  #base;
  #width = 0;
  #span = 30_000;
  #isStale = true;

  /** Draws `lane` in the element `svg`, beginning at the server's time `now`. */
  constructor(svg, lane, now) {
    this.#svg = svg;
    this.#lane = lane;
    this.#base = now;
    svg.setAttribute('height', HEIGHT);
    this.#labels = append(svg, 'g', { class: 'labels' });
    this.#plot = append(svg, 'svg', { x: LEFT, height: HEIGHT });
    const clip = append(append(svg, 'defs'), 'clipPath', { id: `over-${lane.algorithm.name}` });
    this.#layers.overClip = append(clip, 'rect', { y: 0 });
    this.#scroll = append(this.#plot, 'g');
    for (const name of ['edges', 'area', 'waits', 'allowed', 'delayed', 'arrived', 'denied', 'turns', 'counted']) {
      this.#layers[name] = append(this.#scroll, 'path', { class: name });
    }
    // Unclipped coordinates: the part of the area above the limit.
    const over = append(this.#plot, 'g', { 'clip-path': `url(#over-${lane.algorithm.name})` });
    this.#layers.overGroup = append(over, 'g');
    this.#layers.over = append(this.#layers.overGroup, 'path', { class: 'over' });
    lane.addEventListener('change', () => (this.#isStale = true));
    new ResizeObserver(([entry]) => this.#resize(entry.contentRect.width)).observe(svg);
  }

  /** The span that is visible, in milliseconds. */
  set span(span) {
    this.#span = span;
    this.#isStale = true;
  }

  #resize(width) {
    this.#width = Math.max(width - LEFT - RIGHT, 1);
    this.#isStale = true;
  }

  get #scale() {
    return this.#width / this.#span;
  }

  #x(at) {
    return (at - this.#base) * this.#scale;
  }

  /** Draws the state at the server's time `now`. */
  draw(now) {
    if (this.#width === 0) return;
    if (this.#isStale || this.#lane.pending.size > 0 || now - this.#drawnAt > 1000) this.#redraw(now);
    const transform = `translate(${round(this.#width - this.#x(now))} 0)`;
    this.#scroll.setAttribute('transform', transform);
    this.#layers.overGroup.setAttribute('transform', transform);
  }

  #drawnAt = -Infinity;

  #redraw(now) {
    this.#isStale = false;
    this.#drawnAt = now;
    this.#plot.setAttribute('width', this.#width);
    const from = now - this.#span;
    this.#drawMarks(from, now);
    this.#drawCounts(from, now);
    this.#drawEdges(from, now);
    this.#drawLabels();
  }

  #drawMarks(from, now) {
    const place = new Placement();
    const visible = this.#lane.records.filter((record) => (record.admitted ?? record.arrival) > from - 1000);
    const inOrder = [...visible, ...this.#lane.waiting(now)].sort((one, other) => one.arrival - other.arrival);
    const marks = inOrder.map((record) => {
      const column = Math.floor(this.#x(record.arrival) / COLUMN);
      const end = record.verdict === 'pending' ? now : (record.admitted ?? record.arrival);
      return { record, column, row: place.row(column, Math.floor(this.#x(end) / COLUMN)) };
    });
    const step = Math.min(MARK + 1, (MARKS.base - MARKS.top) / place.rows);
    const size = Math.min(MARK, step);
    const paths = { allowed: '', delayed: '', arrived: '', denied: '', waits: '', turns: '' };
    for (const { record, column, row } of marks) {
      const [x, y] = [column * COLUMN, round(MARKS.base - (row + 1) * step)];
      const middle = round(y + size / 2);
      if (this.#lane.algorithm.delays && record.admitted) {
        paths.turns += square(round(this.#x(record.admitted)), TURNS.top, MARK);
      }
      switch (record.verdict) {
        case 'denied':
          paths.denied += `M${x} ${y}l${MARK} ${size}M${x + MARK} ${y}l${-MARK} ${size}`;
          break;
        case 'allowed':
          paths.allowed += square(x, y, size);
          break;
        default: {
          const end = record.verdict === 'pending' ? this.#x(now) + COLUMN : this.#x(record.admitted);
          paths.arrived += square(x, y, size);
          paths.waits += `M${x + MARK} ${middle}H${round(Math.max(end, x + MARK))}`;
          if (record.verdict === 'delayed') paths.delayed += square(round(end), y, size);
        }
      }
    }
    for (const [name, path] of Object.entries(paths)) this.#layers[name].setAttribute('d', path);
  }

  #drawCounts(from, now) {
    const y = (count) => round(COUNTS.base - Math.min(count / this.#most, 1) * (COUNTS.base - COUNTS.top));
    const start = this.#x(from - 1000);
    let area = `M${round(start)} ${COUNTS.base}`;
    for (const [at, count] of this.#lane.admissions.steps(from)) {
      area += `H${round(Math.max(this.#x(at), start))}V${y(count)}`;
    }
    area += `H${round(this.#x(now + 2000))}V${COUNTS.base}Z`;
    this.#layers.area.setAttribute('d', area);
    this.#layers.over.setAttribute('d', area);
    this.#layers.overClip.setAttribute('width', this.#width);
    this.#layers.overClip.setAttribute('height', y(this.#lane.rate.tokens));

    let counted = '';
    for (const { at, used } of this.#lane.samples) {
      counted += counted ? `H${round(this.#x(at))}V${y(used)}` : `M${round(this.#x(at))} ${y(used)}`;
    }
    // Without answers of the server, the line ends at the last one.
    if (counted && !this.#lane.error) counted += `H${round(this.#x(now + 2000))}`;
    this.#layers.counted.setAttribute('d', counted);
  }

  #drawEdges(from, now) {
    const seconds = this.#lane.algorithm.edges?.(this.#lane.settings);
    let edges = '';
    const period = seconds * 1000;
    if (this.#span / period <= MOST_EDGES) {
      for (let edge = Math.floor(from / period) * period; edge < now + 2000; edge += period) {
        edges += `M${round(this.#x(edge))} ${MARKS.top - 4}V${COUNTS.base}`;
      }
    }
    this.#layers.edges.setAttribute('d', edges);
  }

  #drawLabels() {
    this.#labels.replaceChildren();
    const right = LEFT + this.#width;
    const y = (count) => round(COUNTS.base - (count / this.#most) * (COUNTS.base - COUNTS.top));
    for (const base of [MARKS.base + 0.5, COUNTS.base + 0.5]) {
      append(this.#labels, 'path', { class: 'base', d: `M${LEFT} ${base}H${right}` });
    }
    const limit = this.#lane.rate.tokens;
    append(this.#labels, 'path', { class: 'limit', d: `M${LEFT} ${y(limit)}H${right}` });
    this.#label(LEFT - 6, y(limit) + 4, limit, 'end');
    this.#label(LEFT - 6, COUNTS.base + 1, '0', 'end');
    const seconds = this.#span / 1000;
    const step = this.#width < 420 ? seconds / 2 : seconds / 6;
    for (let ago = seconds; ago > 0; ago -= step) {
      this.#label(right - ago * 1000 * this.#scale, HEIGHT - 6, `−${round(ago)} s`, ago === seconds ? 'start' : 'middle');
    }
    this.#label(right, HEIGHT - 6, 'now', 'end');
  }

  #label(x, y, text, anchor) {
    append(this.#labels, 'text', { x: round(x), y: round(y), 'text-anchor': anchor }).textContent = text;
  }

  /** The highest count that the chart has room for. */
  get #most() {
    return Math.max(this.#lane.rate.tokens * 2.1, this.#lane.capacity ?? 0);
  }
}

/** Finds a row for each mark, above those in its column and beside the lines of those that wait. */
class Placement {
  /** The number of rows in use. */
  rows = 1;
  #next = new Map();
  #ends = [];

  /** Returns the lowest free row for a mark that extends from `column` to the column `end`. */
  row(column, end) {
    let row = this.#next.get(column) ?? 0;
    while (this.#ends[row] >= column) row += 1;
    this.#next.set(column, row + 1);
    if (end > column) this.#ends[row] = end;
    this.rows = Math.max(this.rows, row + 1);
    return row;
  }
}

function append(parent, name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  return parent.appendChild(element);
}

const square = (x, y, size) => `M${x} ${y}h${MARK}v${size}h${-MARK}z`;

const round = (number) => Math.round(number * 10) / 10;

// Elements and paths of SVG.

const SVG = 'http://www.w3.org/2000/svg';

/** The side of a mark, and the distance of two columns of marks, in pixels. */
export const MARK = 4;
export const COLUMN = 6;

/** What is new is drawn after so many milliseconds. In between, drawings only move. */
export const FRESH = 80;

/** Coordinates are exact in drawings this many milliseconds long. */
export const FAR = 600_000;

export function append(parent, name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  return parent.appendChild(element);
}

/** Appends a group that is visible within a rectangle only, which is `area`. */
export function clip(parent, id) {
  const area = append(append(append(parent, 'defs'), 'clipPath', { id }), 'rect', { y: 0 });
  return { area, group: append(parent, 'g', { 'clip-path': `url(#${id})` }) };
}

export const round = (number) => Math.round(number * 10) / 10;

export const square = (x, y, size) => `M${x} ${y}h${MARK}v${size}h${-MARK}z`;

/** Finds a row for each mark, above those in its column and beside the lines of those that wait. */
export class Placement {
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

/** Returns the path of one mark for each item, stacked upwards from `base` over at most `height` pixels. */
export function stack(items, x, base, height) {
  const place = new Placement();
  const marks = items.map((item) => {
    const column = Math.floor(x(item) / COLUMN);
    return { column, row: place.row(column, column) };
  });
  const step = Math.min(MARK + 1, height / place.rows);
  const size = Math.min(MARK, step);
  return marks.map(({ column, row }) => square(column * COLUMN, round(base - (row + 1) * step), size)).join('');
}

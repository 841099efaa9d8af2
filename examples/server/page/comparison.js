// A line for each algorithm, which compares the worst period, and what was allowed, denied and delayed.

export class Comparison {
  #body = document.querySelector('#comparison tbody');
  #lanes = [];

  /** Compares these lanes. */
  show(lanes) {
    this.#lanes = lanes;
    this.#body.replaceChildren(...lanes.map(row));
  }

  /** Draws the figures at the instant `now`. */
  draw(now) {
    this.#lanes.forEach((lane, index) => {
      const { allowed, denied, delayed } = lane.totals(now);
      const peak = lane.admissions.peak(now);
      const cells = this.#body.rows[index].cells;
      const texts = [`${peak} of ${lane.most}`, allowed, denied, delayed];
      texts.forEach((text, column) => {
        const cell = cells[column + 1];
        if (cell.textContent !== String(text)) cell.textContent = text;
      });
      cells[1].classList.toggle('is-over', peak > lane.most);
    });
  }
}

function row({ algorithm }) {
  const element = document.createElement('tr');
  element.dataset.lane = algorithm.name;
  const title = Object.assign(document.createElement('th'), { scope: 'row', textContent: algorithm.title });
  const cells = ['peak', 'allowed', 'denied', 'delayed'].map((part) => {
    const cell = document.createElement('td');
    cell.dataset.part = part;
    return cell;
  });
  element.append(title, ...cells);
  return element;
}

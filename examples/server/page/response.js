// The last response of one lane, with its headers, and the command that sends such a request.

export class ResponsePanel {
  #choice = document.getElementById('response-lane');
  #text = document.getElementById('response');
  #command = document.getElementById('command');
  #lanes = [];
  #shown = null;
  #cost;

  /** Calls `cost` for the cost of the command's request. */
  constructor(cost) {
    this.#cost = cost;
    this.#choice.addEventListener('change', () => this.draw());
  }

  /** Offers these lanes. The choice stays, if it is among them. */
  offer(lanes) {
    this.#lanes = lanes;
    const chosen = this.#choice.value;
    this.#choice.replaceChildren(...lanes.map(({ algorithm }) => new Option(algorithm.title, algorithm.name)));
    if (lanes.some(({ algorithm }) => algorithm.name === chosen)) this.#choice.value = chosen;
    this.draw();
  }

  draw() {
    const lane = this.#lanes.find(({ algorithm }) => algorithm.name === this.#choice.value);
    const command = lane ? `curl -i '${location.origin}${lane.path(this.#cost())}'` : '';
    if (this.#command.textContent !== command) this.#command.textContent = command;
    const response = lane?.response ?? null;
    if (response === this.#shown && this.#text.childElementCount > 0) return;
    this.#shown = response;
    this.#text.replaceChildren(...(response ? lines(response) : [span('hint', 'No request yet.')]));
  }
}

function lines({ status, statusText, headers, text, body }) {
  const head = span(status === 200 ? 'ok' : 'not-ok', `${status} ${statusText}\n`);
  const fields = [...headers].flatMap(([name, value]) => [span('name', `${name}: `), `${value}\n`]);
  return [head, ...fields, `\n${body ? JSON.stringify(body, null, 1) : text.trim()}`];
}

function span(className, text) {
  return Object.assign(document.createElement('span'), { className, textContent: text });
}

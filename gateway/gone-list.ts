import type { FrontendRequest } from '../actors/index.js';

/**
 * Tickets whose client has left. The frontend must learn of each, or a worker goes on for nobody: while its mailbox is full
 * they wait here, at most as many as there were requests.
 */
export class GoneList {
  readonly #submit: (request: FrontendRequest) => boolean;
  readonly #waiting: number[] = [];
  #timer: NodeJS.Timeout | undefined;

  constructor(submit: (request: FrontendRequest) => boolean) {
    this.#submit = submit;
  }

  tell(ticket: number): void {
    this.#waiting.push(ticket);
    this.#drain();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #drain(): void {
    for (let ticket = this.#waiting[0]; ticket !== undefined; ticket = this.#waiting[0]) {
      if (!this.#submit({ type: 'ClientGone', ticket })) {
        this.#timer ??= setTimeout(() => {
          this.#timer = undefined;
          this.#drain();
        }, 20);
        return;
      }
      this.#waiting.shift();
    }
  }
}

/** What is on the tape of actors, run again. */
export { type LifeOnTape, livesOf, type Placed } from './lives.js';
export { meant, type Replayed, type ReplayOptions, replayLife, saidIn } from './replay.js';

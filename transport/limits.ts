/** Sizes and bounds that both ends of a message must agree on. */

/** Largest message in one piece. A larger one goes out in chunks of this size. */
export const chunkBytes = 512 * 1024;
/** Largest message of all, chunks together. */
export const messageBytes = 32 * 1024 * 1024;
/** What the broker takes in one piece (its `max_payload`); room for headers and a dead letter's frame. */
export const payloadBytes = 1024 * 1024;
/** Longest time a request or a work item may be given: budgets above it are malformed. */
export const budgetMaxMs = 24 * 3600 * 1000;

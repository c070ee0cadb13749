/** Milliseconds of the monotonic clock that streams are timed with. */
export const now = (): number => performance.now();

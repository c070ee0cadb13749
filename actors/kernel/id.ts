/**
 * Ids in the manner of ULID: 10 characters of milliseconds, 16 of randomness, Crockford's alphabet in lower case. Within
 * one millisecond the random part counts up, so ids of one process sort in the order they were made.
 */
const alphabet = '0123456789abcdefghjkmnpqrstvwxyz';
const timeLength = 10;
const randomLength = 16;

/** `wallTime` in milliseconds since 1970, `random` in [0, 1). A clock that goes back does not take the ids back. */
export function idSource(wallTime: () => number, random: () => number): () => string {
  let last = -1;
  let time = '';
  const tail = new Uint8Array(randomLength);

  return () => {
    const now = Math.floor(wallTime());
    if (now > last) {
      last = now;
      time = encode(now);
      // The first bit stays 0, so counting up within this millisecond cannot overflow.
      for (let index = 0; index < randomLength; index++) tail[index] = random() * (index === 0 ? 16 : 32);
    } else {
      increment(tail);
    }
    let text = time;
    for (const digit of tail) text += alphabet[digit];
    return text;
  };
}

function encode(milliseconds: number): string {
  let text = '';
  for (let rest = milliseconds; text.length < timeLength; rest = Math.floor(rest / 32))
    text = alphabet[rest % 32] + text;
  return text;
}

function increment(digits: Uint8Array): void {
  for (let index = digits.length - 1; index >= 0; index--) {
    const digit = digits[index] as number;
    if (digit < 31) {
      digits[index] = digit + 1;
      return;
    }
    digits[index] = 0;
  }
}

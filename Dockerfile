# syntax=docker/dockerfile:1
# docker build -t dynact . && docker run --rm --init -p 127.0.0.1:8000:8000 dynact

FROM node:22-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends cmake python3-pip && rm -rf /var/lib/apt/lists/*
WORKDIR /app
ENV CI=true DYNACT_CACHE=/var/cache/dynact
# The packages first: they change less often than the sources.
COPY package.json package-lock.json .npmrc ./
COPY bin/setup.mjs bin/setup.mjs
COPY bin/setup bin/setup
RUN node bin/setup.mjs --only dependencies,headers,nats,model
COPY . .
RUN node bin/setup.mjs && npm prune --omit=dev --ignore-scripts && rm -rf dist/spec dist/bench "$DYNACT_CACHE"/headers "$DYNACT_CACHE"/tmp

FROM node:22-bookworm-slim
WORKDIR /app
ENV NODE_ENV=production DYNACT_CACHE=/var/cache/dynact
COPY --from=build --chown=node:node /var/cache/dynact /var/cache/dynact
COPY --from=build /app/package.json ./
COPY --from=build /app/node_modules node_modules
COPY --from=build /app/dist dist
COPY --from=build /app/gpu/native/build/Release gpu/native/build/Release
# A folder of its own for what dynact writes: streams, credentials, sockets.
RUN install -d -o node -g node -m 0700 /app/.dynact
VOLUME /app/.dynact
USER node
EXPOSE 8000
# Inside the container every address is dynact's own; outside, `-p 127.0.0.1:8000:8000` keeps it on loopback.
ENTRYPOINT ["node", "dist/start/dynact.js"]
CMD ["up", "--host", "0.0.0.0"]

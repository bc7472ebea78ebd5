import { each, fields, flag, list, type Shape, text } from "./shape.ts";

// The part of the Compose specification that deploy/compose.yaml uses.

const buildShape = fields({ context: text, dockerfile: text, args: each(text) }, "context");
const service = fields(
  {
    image: text,
    build: buildShape,
    command: list(text),
    environment: each(text),
    networks: each(fields({ aliases: list(text) })),
    depends_on: each(fields({ condition: text }, "condition")),
    healthcheck: fields({ test: list(text), interval: text, timeout: text, retries: "integer", disable: flag }),
    volumes: list(text),
    ports: list(text),
    stop_grace_period: text,
    restart: text,
    read_only: flag,
    cap_drop: list(text),
    security_opt: list(text),
    mem_limit: text,
    shm_size: text,
  },
  "image",
);

export const composeShape: Shape = fields({ name: text, services: each(service), volumes: each("empty") }, "services");

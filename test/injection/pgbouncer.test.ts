import { type Client, createClient } from "@connectrpc/connect";
import { LeaseAnswer, SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { migrate } from "../../server/store/migrate.ts";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { openPaused } from "../support/paused.ts";
import { missingPgBouncer as missing, type PgBouncer, startPgBouncer } from "../support/pgbouncer.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { ask } from "../support/standby.ts";
import { operatorToken } from "./server-process.ts";
import { dollar, refused } from "./spend-call.ts";

describe.skipIf(missing !== undefined)(
  `behind PgBouncer in transaction mode with two connections${missing === undefined ? "" : ` (skipped: ${missing})`}`,
  () => {
    let database: TestDatabase;
    let bouncer: PgBouncer;
    let apps: App[] = [];
    let policy: Policy;
    let spends: Client<typeof SpendControlService>;

    beforeAll(async () => {
      database = await createTestDatabase({ migrated: false });
      bouncer = await startPgBouncer(database.connection);
      const { connection } = bouncer;
      await migrate(connection);
      const config = {
        ...readConfig({}, []),
        port: 0,
        logLevel: "silent",
        operatorToken,
        preparedStatements: false,
        sweepIntervalMs: 200,
      } as const;
      const start = () => startApp(config, { connection, fsyncOff: "allowed" });
      apps = [await start(), await start()];
      policy = await createPolicy(apps[0]?.url ?? "", operatorToken, "100");
      spends = createClient(SpendControlService, transportOf(apps[1]?.url ?? "", policy.vaultKey));
    });
    afterAll(async () => {
      for (const app of apps) await app.close();
      await bouncer?.close();
      await database?.close();
    });

    const others = () => createClient(SpendControlService, transportOf(apps[0]?.url ?? "", policy.vaultKey));

    test("two servers and 200 callers never grant more than the cap", async () => {
      const requests = Array.from({ length: 200 }, (_, n) => dollar(`c${n}`));
      const answers = await Promise.all(
        requests.map((request, n) => (n % 2 === 0 ? spends : others()).authorizeSpend(request)),
      );
      expect(answers.filter(({ disposition }) => disposition === Disposition.GRANTED)).toHaveLength(100);
      expect(answers.filter(({ disposition }) => disposition === Disposition.DENIED)).toHaveLength(100);
      const attempts = new Map(requests.map(({ spend, attemptId }) => [spend.customerId, attemptId]));
      const granted = answers.filter(({ disposition }) => disposition === Disposition.GRANTED);
      await Promise.all(
        granted.map(async ({ authorization }, n) => {
          const name = authorization?.name ?? "";
          if (n % 2 === 0) {
            const amount = { currency: "usd", amount: "1" };
            return await spends.commitSpend({ authorization: name, amount, vendorReference: `pi_${n}` });
          }
          const attemptId = attempts.get(authorization?.spend?.customerId ?? "") ?? "";
          return await spends.voidSpend({ authorization: name, attemptId, evidence: VoidEvidence.NEVER_SENT });
        }),
      );
      expect(await policy.usage()).toMatchObject({ committed: "50", held: "0" });
    });

    test("policies, leases, dry runs and reads work", async () => {
      await policy.setLimit("500");
      const request = dollar("dry");
      expect(await spends.authorizeSpend({ ...request, dryRun: true })).toMatchObject({
        disposition: Disposition.GRANTED,
      });
      const lease = {
        lease: "run",
        billingPeriod: "2026-11",
        holderId: "a".repeat(32),
        ttl: { seconds: 30n, nanos: 0 },
      };
      const first = await spends.acquireBillingLease(lease);
      const second = await others().acquireBillingLease({ ...lease, holderId: "b".repeat(32) });
      expect([first.answer, second.answer]).toEqual([LeaseAnswer.ACQUIRED, LeaseAnswer.HELD_BY_OTHER]);
      await policy.admin.revokeVaultKey({ name: "vaultKeys/billing" });
      expect(await spends.authorizeSpend(dollar("revoked"))).toMatchObject({ disposition: Disposition.DENIED });
    });

    test("a lock that somebody keeps ends a call in time, although no session has settings", async () => {
      const paused = await openPaused(database.pool);
      onTestFinished(() => paused.release());
      await paused.client.query("select from holdfast.workspaces for update");
      expect(await refused(policy.setLimit("400"))).toMatchObject({ reason: "DATABASE_UNAVAILABLE", retryInfo: true });
      paused.release();
      await policy.setLimit("400");
    });

    test("nothing of a session stays behind: no settings, no named statements, no locks, nobody listens", async () => {
      const { rows } = await database.pool.query(
        `select (select count(*)::int4 from pg_locks where locktype = 'advisory') as locks,
           (select count(*)::int4 from pg_stat_activity where datname = current_database() and state <> 'idle'
              and pid <> pg_backend_pid() and query not like '/* %') as others`,
      );
      expect(rows).toEqual([{ locks: 0, others: 0 }]);
      // Through the bouncer itself: whichever connection answers.
      for (let n = 0; n < 10; n += 1) {
        const [row] = await ask(
          { ...database.connection, ...bouncer.connection },
          `select current_setting('lock_timeout') as lock_timeout, current_setting('statement_timeout') as
             statement_timeout, (select count(*)::int4 from pg_prepared_statements where name <> '') as statements`,
        );
        expect(row).toEqual({ lock_timeout: "0", statement_timeout: "0", statements: 0 });
      }
    });
  },
);

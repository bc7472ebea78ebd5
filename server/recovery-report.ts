import type { InstanceProblem, Recovery } from "./store/instance.ts";

const problems: Readonly<Record<InstanceProblem, string>> = {
  MISSING: "it did not say which database it is",
  TIMELINE: "a replica was promoted or a backup restored",
  OTHER_CLUSTER: "it was copied from another cluster",
  OTHER_DATABASE: "it was copied from another database",
  LOG_WENT_BACK: "an older state of its files was put back",
};

/** What `holdfast recover` has done, and what is left to do. */
export function recoveryReport(recovery: Recovery): string {
  if (!recovery.recovered) {
    return `recover: nothing to do: this is the database that was granted from.
  Was it restored in a way that it cannot show, such as a snapshot of its files? Then run "recover --restored".
`;
  }
  const { problem, workspaces, leases, held, open, inDoubt, oldestGrantTime, newestGrantTime } = recovery;
  return `recover: done (${problem === undefined ? "asked for with --restored" : problems[problem]}); grants go on.
  workspaces                   ${workspaces}
  billing leases ended         ${leases}
  authorizations, were held    ${held}
  authorizations, in doubt     ${inDoubt} newly marked of ${open} open; they keep their headroom
  oldest open grant            ${oldestGrantTime ?? "none"}
  newest grant known here      ${newestGrantTime ?? "none"}

Left to do, before billing runs again:
  1. No server and no caller may still reach the old database.
  2. Reconcile with the vendor (the SDK's holdfast.reconcile): it settles what is in doubt.
  3. What was granted after the newest grant is unknown here. A repeat of it gets the same vendor key, which Stripe
     answers from memory for 24 hours. Repeat later only what you have looked up at the vendor.
`;
}

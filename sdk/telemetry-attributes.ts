/** Every span attribute the SDK sets. None ever carries a key, a token or a body. */
export const ATTRIBUTES = {
  customerId: "holdfast.customer_id",
  billingPeriod: "holdfast.billing_period",
  lease: "holdfast.lease.name",
  purpose: "holdfast.purpose",
  authorization: "holdfast.authorization",
  generation: "holdfast.generation",
  disposition: "holdfast.disposition",
  batchSize: "holdfast.batch.size",
  vendor: "holdfast.vendor",
  vendorEndpoint: "holdfast.vendor_endpoint",
  vendorReference: "holdfast.vendor_reference",
  vendorStatus: "holdfast.vendor_status",
  vendorReplayed: "holdfast.vendor_replayed",
  outcome: "holdfast.outcome",
  replay: "holdfast.replay",
} as const;

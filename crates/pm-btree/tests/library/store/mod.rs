//! The behaviour of a store: changes, batches, threads, refusals, corrupted bits, failed fences.

mod batches;
mod changes;
mod corrupted_entries;
mod corrupted_index;
mod crash_after_flip;
mod damage;
mod failed_fences;
mod flips;
mod full;
mod groups;
mod lending;
mod prop_types;
mod refusals;
mod splits_and_gets;
mod threads;
mod verified_reads;

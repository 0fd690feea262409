//! The behaviour of a store: changes, batches, threads, refusals, corrupted bits, failed fences.

mod batches;
mod changes;
mod changes_of_damaged;
mod corrupted_entries;
mod corrupted_index;
mod crash_after_flip;
mod damage;
mod exchanges;
mod failed_fences;
mod flips;
mod full;
mod full_groups;
mod groups;
mod handles;
mod lending;
mod prefixes;
mod prop_types;
mod random_sessions;
mod read_only;
mod refusals;
mod removals;
mod splits_and_gets;
mod threads;
mod unlink_races;
mod unlinked;
mod verified_reads;

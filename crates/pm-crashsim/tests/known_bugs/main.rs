//! Published crash-consistency bugs, re-created: the explorer finds each at its place, and finds nothing in its corrected twin.
//!
//! # How to read a case
//! A case is a function from [`Form`](harness::Form) to a [`Case`](harness::Case): an image to start from, an operation
//! that acknowledges what it has done, and a check that recovers and compares. The two forms share all that they can,
//! so that the difference is the bug. Its comment tells the system, the tool that reported the bug, and what is lost.
//!
//! The line at fault is marked, and the report of the failure must name it and nothing else:
//!
//! - `//~ B01 lost: fence missing`: the crash has lost what this line stored, and the report says what is missing after
//!   it. Just `lost` where more is wrong than that.
//! - `//~ B02 kept`: what this line stored has reached the medium, and that alone is enough to fail. It was stored too
//!   early, or there is no recovery that can live with it, and no flush or fence would repair it.
//! - `//~ B31 kept in recovery`: the same of a second crash, inside the recovery from the first.
//!
//! The corrected twin passes every legal choice, crashes inside recovery included, under every model of the caches. Where the design relies on the
//! order inside a line the case says so, and leaves out the models that do not promise it. And each flush and fence of a twin is needed: with any one
//! left out, the same check fails. So recoveries that can be repeated flush no more than they must.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod harness;

mod cceh;
mod corundum;
mod fast_fair;
mod level_hashing;
mod memcached_pm;
mod nova;
mod p_art;
mod p_bwtree;
mod p_clht;
mod p_hot;
mod pmdk;
mod pmdk_tx;
mod pmfs;
mod pool;
mod recipe;
mod splitfs;
mod winefs;

use harness::{Bug, Source};
use std::panic::catch_unwind;

/// Lists the cases, and makes a test of each.
macro_rules! known_bugs {
    ($($id:ident $test:ident $system:literal $file:ident::$case:ident)*) => {
        const ALL: &[Bug] = &[$(Bug {
            id: stringify!($id),
            system: $system,
            source: Source {
                name: concat!(stringify!($file), ".rs"),
                text: include_str!(concat!(stringify!($file), ".rs")),
            },
            case: $file::$case,
        }),*];

        $(mod $test {
            #[test]
            fn $case() {
                let bug = super::ALL.iter().find(|bug| bug.id == stringify!($id));
                println!("{}", bug.expect("each case is in the list").verify());
            }
        })*
    };
}

known_bugs! {
    B01 b01 "Level Hashing" level_hashing::token_set_before_its_slot_is_fenced
    B02 b02 "Level Hashing" level_hashing::old_token_cleared_before_the_new_one_is_set
    B03 b03 "Level Hashing" level_hashing::capacity_bumped_before_the_new_buckets_exist
    B04 b04 "FAST&FAIR" fast_fair::flush_at_the_line_where_the_shift_began
    B05 b05 "FAST&FAIR" fast_fair::delete_ignores_the_half_shifted_duplicate
    B06 b06 "FAST&FAIR" fast_fair::sibling_linked_before_the_new_root_exists
    B07 b07 "FAST&FAIR" fast_fair::constructor_is_never_flushed
    B08 b08 "CCEH" cceh::local_depth_larger_than_global_depth
    B09 b09 "CCEH" cceh::sentinel_of_an_insertion_is_never_removed
    B10 b10 "CCEH" cceh::doubled_directory_visible_before_it_is_durable
    B11 b11 "CCEH" cceh::lock_free_get_of_a_value_not_durable
    B12 b12 "P-ART" p_art::count_durable_before_its_child
    B13 b13 "P-BwTree" p_bwtree::fetch_sub_is_never_flushed
    B14 b14 "P-CLHT" p_clht::flush_of_the_owner_not_the_table
    B15 b15 "P-CLHT" p_clht::bucket_lock_is_held_after_the_crash
    B16 b16 "P-CLHT" p_clht::table_allocated_and_never_linked
    B17 b17 "P-HOT" p_hot::exchange_publishes_an_unfenced_node
    B18 b18 "P-HOT" p_hot::flush_of_a_temporary
    B19 b19 "RECIPE" recipe::commit_word_torn_by_the_compiler
    B20 b20 "PMDK btree" pmdk_tx::field_changed_without_being_logged
    B21 b21 "PMDK btree" pmdk_tx::range_logged_after_it_was_written
    B22 b22 "PMDK hashmap" pmdk::dirty_flag_inverted
    B23 b23 "PMDK" pmdk::chunk_header_written_before_its_footer
    B24 b24 "PMDK" pmdk::array_pointer_durable_before_its_length
    B25 b25 "memcached-pm" memcached_pm::item_linked_before_its_fields
    B26 b26 "NOVA" nova::tail_durable_before_the_head_of_the_entry
    B27 b27 "NOVA" nova::old_name_removed_before_the_new_one_is_durable
    B28 b28 "NOVA" nova::ragged_tail_of_a_non_temporal_copy
    B29 b29 "PMFS" pmfs::no_fence_before_the_commit_record
    B30 b30 "WineFS" winefs::flush_of_the_first_line_only
    B31 b31 "SplitFS" splitfs::replay_resurrects_a_renamed_file
    B32 b32 "any" pool::crash_in_create_leaves_an_unusable_pool
    B33 b33 "Corundum" corundum::flush_end_derived_from_the_rounded_start
}

#[test]
fn all_33_are_here() {
    let ids: Vec<&str> = ALL.iter().map(|bug| bug.id).collect();
    let expected: Vec<String> = (1..=33).map(|number| format!("B{number:02}")).collect();
    assert_eq!(ids, expected);
}

/// The marks have teeth: one line further down, none is where its bug is found.
#[test]
fn wrong_mark_fails() {
    for bug in ALL {
        let text = format!("\n{}", bug.source.text);
        let moved = Bug { source: Source { text: text.leak(), ..bug.source }, ..*bug };
        let verified = catch_unwind(|| moved.verify());
        assert!(verified.is_err(), "{} passes with its mark elsewhere", bug.id);
    }
}

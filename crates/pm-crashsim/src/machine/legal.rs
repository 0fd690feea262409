//! What a crash leaves: the pending chunks that are chosen, and what the order of stores makes of the choice.

use super::Machine;
use crate::chunk::Chunk;
use crate::image::Image;
use crate::line::index;
use std::collections::HashSet;

impl Machine<'_> {
    /// The image that a crash leaves if, of what is pending, `kept` had reached the medium: with what must be there then, and
    /// without what cannot be.
    pub(crate) fn image(&self, kept: &mut Vec<Chunk>) -> Image {
        self.add_ordered(kept);
        self.settle(kept);
        let (lines, change) = self.merged(kept);
        self.floor.overlaid(lines, change)
    }

    /// Adds what is ordered before something that is kept.
    fn add_ordered(&self, kept: &mut Vec<Chunk>) {
        let Some(latest) = kept.iter().map(|chunk| chunk.event).max().filter(|_| self.has_ordered) else {
            return;
        };
        let known: HashSet<_> = kept.iter().map(Chunk::as_survivor).collect();
        let pending = self.write_back.values().chain(self.non_temporal.values()).flatten();
        let ordered = pending.filter(|chunk| chunk.ordered_at <= latest);
        kept.extend(ordered.filter(|chunk| !known.contains(&chunk.as_survivor())));
    }

    /// Of words that were stored to around the cache and through it, adds what must be kept because a later store is, and
    /// takes away what cannot be because an earlier one is not: stores to one word become durable in order.
    pub(crate) fn settle(&self, kept: &mut Vec<Chunk>) {
        if !self.rules.model.orders_words() {
            return;
        }
        for (word, around) in &self.non_temporal {
            // Most words are stored to in one way only.
            let count = self.pending_count.get(word).map_or(0, |&count| index(count.into()));
            if count > around.len() {
                self.settle_word(*word, around, kept);
            }
        }
    }

    fn settle_word(&self, word: u64, around: &[Chunk], kept: &mut Vec<Chunk>) {
        let unit = self.write_back.get(&self.rules.model.unit(around[0].offset()));
        let cached: Vec<&Chunk> = unit.into_iter().flatten().filter(|chunk| chunk.word == word).collect();
        let is_kept = |chunk: &Chunk| kept.iter().any(|other| other.as_survivor() == chunk.as_survivor());
        let latest = cached.iter().filter(|chunk| is_kept(chunk)).map(|chunk| chunk.event).max();
        let is_needed = |chunk: &Chunk| latest.is_some_and(|latest| chunk.event < latest);
        let missing: Vec<&Chunk> = cached.into_iter().filter(|chunk| !is_kept(chunk)).collect();
        // All of a store's pieces of the word are there before the next store's.
        let wanted: Vec<Chunk> =
            around.iter().filter(|chunk| is_kept(chunk) || is_needed(chunk)).copied().collect();
        // The loss of what is replaced is not seen.
        let is_hidden = |lost: &Chunk, around: &[Chunk]| {
            let later = around.iter().filter(|chunk| chunk.event > lost.event);
            let masks = later.map(|chunk| chunk.mask).reduce(|all, mask| all | mask);
            masks.is_none_or(|masks| lost.mask & !masks == 0)
        };
        let is_legal = |count: &usize| missing.iter().all(|lost| is_hidden(lost, &wanted[..*count]));
        let count = (0..=wanted.len()).rev().find(is_legal).unwrap_or(0);
        kept.retain(|chunk| {
            chunk.word != word || !around.iter().any(|a| a.as_survivor() == chunk.as_survivor())
        });
        kept.extend(&wanted[..count]);
    }
}

//! IS sorts integers: it counts the rank of each key, by buckets.

use super::kernel::{Kernel, Wrong, index};
use super::random::{BITS, Random};

/// The iterations of a problem.
const ITERATIONS: u32 = 10;
const BUCKET_BITS: u32 = 10;
/// Keys that iterations change, so that no two of them compute the same.
const CHANGED: usize = 21;

/// A problem, and values of its results.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    name: char,
    /// The binary logarithm of the number of keys.
    key_bits: u32,
    /// The same of the largest key.
    max_bits: u32,
    /// Keys whose ranks are known.
    tested: [u32; 5],
    ranks: [u32; 5],
    /// So many of the ranks rise with each iteration; the others fall.
    rising: usize,
    /// The iterations at which the rising and the falling ones are those given.
    at: [u32; 2],
}

/// The smallest class, for tests.
pub const S: Class = Class {
    name: 'S',
    key_bits: 16,
    max_bits: 11,
    tested: [48_427, 17_148, 23_627, 62_548, 4431],
    ranks: [0, 18, 346, 64_917, 65_463],
    rising: 3,
    at: [0, 0],
};

/// The class of workstations: 10 MB.
pub const W: Class = Class {
    name: 'W',
    key_bits: 20,
    max_bits: 16,
    tested: [357_773, 934_767, 875_723, 898_999, 404_505],
    ranks: [1249, 11_698, 1_039_987, 1_043_896, 1_048_018],
    rising: 2,
    at: [2, 0],
};

/// 8 million keys: 66 MiB.
pub const A: Class = Class {
    name: 'A',
    key_bits: 23,
    max_bits: 19,
    tested: [2_112_377, 662_041, 5_336_171, 3_642_833, 4_250_760],
    ranks: [104, 17_523, 123_928, 8_288_932, 8_388_264],
    rising: 3,
    at: [1, 1],
};

/// The computation. A step is one iteration.
#[derive(Clone, Debug)]
pub struct Is {
    class: Class,
    keys: Vec<u32>,
    /// The first keys before any iteration.
    first: [u32; CHANGED],
    /// The keys in their buckets.
    sorted: Vec<u32>,
    /// Of each key, the number of keys that are not larger.
    ranks: Vec<u32>,
    iteration: u32,
}

impl Is {
    /// Makes the keys: each is the mean of four random numbers.
    ///
    /// # Panics
    /// Never: a mean is no larger than the largest number.
    #[must_use]
    pub fn new(class: Class) -> Self {
        let mut random = Random::new();
        let key = || {
            let sum: u64 = (0..4).map(|_| random.next()).sum();
            u32::try_from(sum >> (BITS + 2 - class.max_bits)).expect("a sum of four has two bits more")
        };
        let keys: Vec<u32> = std::iter::repeat_with(key).take(1 << class.key_bits).collect();
        let first = std::array::from_fn(|place| keys[place]);
        let sorted = vec![0; keys.len()];
        Self { class, keys, first, sorted, ranks: vec![0; 1 << class.max_bits], iteration: 0 }
    }

    /// Ranks the keys.
    fn rank(&mut self) {
        let shift = self.class.max_bits - BUCKET_BITS;
        let mut places = vec![0_usize; 1 << BUCKET_BITS];
        for key in &self.keys {
            places[index(key >> shift)] += 1;
        }
        let mut sum = 0;
        for place in &mut places {
            sum += std::mem::replace(place, sum);
        }
        for key in &self.keys {
            let place = &mut places[index(key >> shift)];
            self.sorted[*place] = *key;
            *place += 1;
        }
        self.ranks.fill(0);
        for key in &self.sorted {
            self.ranks[index(*key)] += 1;
        }
        let mut sum = 0;
        for rank in &mut self.ranks {
            sum += *rank;
            *rank = sum;
        }
    }

    /// The ranks of the tested keys, which this iteration determines.
    fn verify_ranks(&self) -> Result<(), Wrong> {
        let Class { tested, ranks, rising, at, .. } = self.class;
        for (number, (place, given)) in tested.into_iter().zip(ranks).enumerate() {
            let key = self.keys[index(place)];
            let smaller = key.checked_sub(1).map_or(0, |below| self.ranks[index(below)]);
            let iteration = self.iteration;
            let expected =
                if number < rising { given + iteration - at[0] } else { given + at[1] - iteration };
            if smaller != expected {
                return Err(self.wrong(
                    format!("rank of key {place}, iteration {iteration}"),
                    smaller,
                    expected,
                ));
            }
        }
        Ok(())
    }

    /// Sorts the keys by their ranks, and compares neighbours.
    fn verify_order(&mut self) -> Result<(), Wrong> {
        let mut ends = self.ranks.clone();
        for key in &self.sorted {
            let end = &mut ends[index(*key)];
            *end -= 1;
            self.keys[index(*end)] = *key;
        }
        let disordered = self.keys.array_windows().filter(|[one, next]| one > next).count();
        let disordered = u32::try_from(disordered).unwrap_or(u32::MAX);
        if disordered > 0 {
            return Err(self.wrong("number of keys out of order".into(), disordered, 0));
        }
        Ok(())
    }

    fn wrong(&self, what: String, found: u32, expected: u32) -> Wrong {
        Wrong { kernel: "IS", class: self.class.name, what, found: found.into(), expected: expected.into() }
    }
}

impl Kernel for Is {
    fn step(&mut self) -> Result<(), Wrong> {
        if self.iteration == ITERATIONS {
            self.keys[..CHANGED].copy_from_slice(&self.first);
            self.iteration = 0;
        }
        self.iteration += 1;
        self.keys[index(self.iteration)] = self.iteration;
        self.keys[index(self.iteration + ITERATIONS)] = (1 << self.class.max_bits) - self.iteration;
        self.rank();
        self.verify_ranks()
    }

    /// The keys are sorted then.
    fn finish(&mut self) -> Result<(), Wrong> {
        while self.iteration < ITERATIONS {
            self.step()?;
        }
        self.verify_order()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_order_are_those_of_the_authors() {
        for class in [S, W] {
            let mut is = Is::new(class);
            is.finish().unwrap();
        }
    }

    #[test]
    fn problem_begins_again() {
        let mut is = Is::new(S);
        for _ in 0..2 * ITERATIONS + 3 {
            is.step().unwrap();
        }
        is.finish().unwrap();
    }

    #[test]
    fn changed_key_is_wrong() {
        let mut is = Is::new(S);
        is.step().unwrap();
        let place = is.keys[100..].iter().position(|key| *key > 1000).unwrap() + 100;
        is.keys[place] = 0;
        assert!(is.step().unwrap_err().to_string().contains("IS, class S: rank of key"));
        let mut is = Is::new(S);
        is.step().unwrap();
        is.iteration = ITERATIONS;
        is.sorted[7] = 2000;
        let wrong = is.finish();
        assert!(wrong.is_err(), "a key that is not where its rank says");
    }
}

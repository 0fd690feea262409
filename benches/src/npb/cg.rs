//! CG estimates the smallest eigenvalue of a large sparse matrix by conjugate gradients.

use super::kernel::{Kernel, Wrong, index};
use super::random::{BITS, Random};

/// The condition of the matrix.
const CONDITION: f64 = 0.1;
/// The iterations of the power method, each with so many of conjugate gradients.
const ITERATIONS: u32 = 15;
const STEPS: u32 = 25;
/// The benchmark's own tolerance.
const TOLERANCE: f64 = 1e-10;
/// An element that has no column yet.
const NONE: u32 = u32::MAX;

/// A problem, and its result.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    name: char,
    rows: u32,
    /// Nonzero elements of each vector whose outer products are the matrix.
    nonzero: usize,
    shift: f64,
    zeta: f64,
}

/// The smallest class, for tests.
pub const S: Class = Class { name: 'S', rows: 1400, nonzero: 7, shift: 10.0, zeta: 8.597_177_507_864_8 };
/// The class of workstations: 6 MB.
pub const W: Class = Class { name: 'W', rows: 7000, nonzero: 8, shift: 12.0, zeta: 10.362_595_087_124 };
/// 1.9 million elements: 22 MB.
pub const A: Class = Class { name: 'A', rows: 14_000, nonzero: 11, shift: 20.0, zeta: 17.130_235_054_029 };

/// A sparse matrix: the elements of one row after the other.
#[derive(Clone, Debug)]
struct Matrix {
    /// Where each row begins, and the end.
    rows: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

/// A vector with few elements that are not zero.
type Sparse = Vec<(u32, f64)>;

/// The computation. A step is one of conjugate gradients: a product of the matrix and a vector.
#[derive(Clone, Debug)]
pub struct Cg {
    class: Class,
    matrix: Matrix,
    x: Vec<f64>,
    z: Vec<f64>,
    p: Vec<f64>,
    q: Vec<f64>,
    r: Vec<f64>,
    rho: f64,
    step: u32,
    iteration: u32,
    zeta: f64,
}

impl Cg {
    /// Makes the matrix.
    #[must_use]
    pub fn new(class: Class) -> Self {
        let vector = || vec![0.0; index(class.rows)];
        let [x, z, p, q, r] = std::array::from_fn(|_| vector());
        let matrix = Matrix::new(class);
        Self { class, matrix, x, z, p, q, r, rho: 0.0, step: 0, iteration: ITERATIONS, zeta: 0.0 }
    }

    fn begin_iteration(&mut self) {
        if self.iteration == ITERATIONS {
            self.x.fill(1.0);
            self.iteration = 0;
        }
        self.z.fill(0.0);
        self.r.copy_from_slice(&self.x);
        self.p.copy_from_slice(&self.x);
        self.rho = dot(&self.r, &self.r);
    }

    fn end_iteration(&mut self) -> Result<(), Wrong> {
        self.zeta = self.class.shift + 1.0 / dot(&self.x, &self.z);
        let length = dot(&self.z, &self.z).sqrt();
        for (x, z) in self.x.iter_mut().zip(&self.z) {
            *x = z / length;
        }
        self.step = 0;
        self.iteration += 1;
        if self.iteration == ITERATIONS { self.verify() } else { Ok(()) }
    }

    fn verify(&self) -> Result<(), Wrong> {
        let expected = self.class.zeta;
        // A number that is none fails, too.
        if ((self.zeta - expected) / expected).abs() <= TOLERANCE {
            return Ok(());
        }
        Err(Wrong { kernel: "CG", class: self.class.name, what: "zeta".into(), found: self.zeta, expected })
    }
}

impl Kernel for Cg {
    fn step(&mut self) -> Result<(), Wrong> {
        if self.step == 0 {
            self.begin_iteration();
        }
        self.matrix.multiply(&self.p, &mut self.q);
        let alpha = self.rho / dot(&self.p, &self.q);
        for (z, p) in self.z.iter_mut().zip(&self.p) {
            *z += alpha * p;
        }
        for (r, q) in self.r.iter_mut().zip(&self.q) {
            *r -= alpha * q;
        }
        let rho = dot(&self.r, &self.r);
        let beta = rho / self.rho;
        self.rho = rho;
        for (p, r) in self.p.iter_mut().zip(&self.r) {
            *p = r + beta * *p;
        }
        self.step += 1;
        if self.step == STEPS { self.end_iteration() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<(), Wrong> {
        loop {
            self.step()?;
            if self.step == 0 && self.iteration == ITERATIONS {
                return Ok(());
            }
        }
    }
}

impl Matrix {
    /// The weighted sum of the outer products of sparse random vectors.
    fn new(class: Class) -> Self {
        let vectors = vectors(class);
        let mut rows = vec![0; vectors.len() + 1];
        for vector in &vectors {
            for (row, _) in vector {
                rows[index(*row) + 1] += vector.len();
            }
        }
        for row in 0..vectors.len() {
            rows[row + 1] += rows[row];
        }
        let places = rows[vectors.len()];
        let mut matrix = Self { rows, columns: vec![NONE; places], values: vec![0.0; places] };
        let ratio = CONDITION.powf(1.0 / f64::from(class.rows));
        let mut size = 1.0;
        for (number, vector) in (0..).zip(&vectors) {
            for (row, of_row) in vector {
                for (column, of_column) in vector {
                    let is_own = *row == number && *column == number;
                    let diagonal = if is_own { CONDITION - class.shift } else { 0.0 };
                    *matrix.element(*row, *column) += of_column * (size * of_row) + diagonal;
                }
            }
            size *= ratio;
        }
        matrix.compact();
        matrix
    }

    /// The element of a row and a column, which is made in the order of columns if there is none.
    fn element(&mut self, row: u32, column: u32) -> &mut f64 {
        let (begin, end) = (self.rows[index(row)], self.rows[index(row) + 1]);
        // Unused places are at the end, and have the largest number.
        let place = begin + self.columns[begin..end].partition_point(|other| *other < column);
        if self.columns[place] != column {
            self.columns.copy_within(place..end - 1, place + 1);
            self.values.copy_within(place..end - 1, place + 1);
            self.columns[place] = column;
            self.values[place] = 0.0;
        }
        &mut self.values[place]
    }

    /// Removes places that are not used.
    fn compact(&mut self) {
        let mut used = 0;
        for row in 0..self.rows.len() - 1 {
            let (begin, end) = (self.rows[row], self.rows[row + 1]);
            self.rows[row] = used;
            for place in begin..end {
                if self.columns[place] != NONE {
                    self.columns[used] = self.columns[place];
                    self.values[used] = self.values[place];
                    used += 1;
                }
            }
        }
        if let Some(end) = self.rows.last_mut() {
            *end = used;
        }
        self.columns.truncate(used);
        self.values.truncate(used);
        self.columns.shrink_to_fit();
        self.values.shrink_to_fit();
    }

    fn multiply(&self, vector: &[f64], product: &mut [f64]) {
        for (of_row, &[begin, end]) in product.iter_mut().zip(self.rows.array_windows()) {
            let elements = self.values[begin..end].iter().zip(&self.columns[begin..end]);
            *of_row = elements.map(|(value, column)| value * vector[index(*column)]).sum();
        }
    }
}

/// The vectors of the outer products: each has random elements, and one half at its own place.
fn vectors(class: Class) -> Vec<Sparse> {
    let mut random = Random::new();
    random.next();
    let bits = class.rows.next_power_of_two().trailing_zeros();
    let vector = |number| {
        let mut vector: Sparse = Vec::with_capacity(class.nonzero + 1);
        while vector.len() < class.nonzero {
            let value = random.unit();
            let place = u32::try_from(random.next() >> (BITS - bits)).expect("fewer bits than 32");
            if place < class.rows && vector.iter().all(|(other, _)| *other != place) {
                vector.push((place, value));
            }
        }
        match vector.iter_mut().find(|(place, _)| *place == number) {
            Some((_, value)) => *value = 0.5,
            None => vector.push((number, 0.5)),
        }
        vector
    };
    (0..class.rows).map(vector).collect()
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_is_that_of_the_authors() {
        let mut cg = Cg::new(S);
        for round in 0..2 {
            cg.finish().unwrap();
            assert!((cg.zeta - S.zeta).abs() < 1e-9, "round {round}: {}", cg.zeta);
        }
    }

    #[test]
    fn another_matrix_has_another_zeta() {
        let mut cg = Cg::new(S);
        cg.matrix.values[1000] += 1.0;
        assert!(cg.finish().unwrap_err().to_string().contains("CG, class S: zeta is"));
        let mut cg = Cg::new(S);
        cg.matrix.values[1000] = f64::NAN;
        assert!(cg.finish().is_err());
    }

    #[test]
    fn rows_are_in_the_order_of_columns_without_gaps() {
        let matrix = Matrix::new(S);
        for &[begin, end] in matrix.rows.array_windows() {
            assert!(matrix.columns[begin..end].is_sorted_by(|one, next| one < next));
        }
        assert_eq!(matrix.rows.last(), Some(&matrix.values.len()));
        assert!(!matrix.columns.contains(&NONE));
    }
}

//! pmbd-ublk.

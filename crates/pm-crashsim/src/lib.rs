//! pm-crashsim.

//! `deckle` as a user has it, and rules of the sources.

mod accept;
mod accept_end;
mod accept_file;
mod accept_fork;
mod accept_group;
mod accept_host;
mod accept_jobs;
mod accept_soak;
mod accept_torture;
mod book;
mod cli_access;
mod cli_doctor;
mod cli_errors;
mod cli_fit;
mod cli_folios;
mod cli_inspect;
mod cli_killed;
mod cli_lab;
mod cli_record;
mod cli_run;
mod cli_services;
mod cli_setup;
mod cli_terminal;
mod common;
mod figures;
mod look;
mod managed;
mod openmetrics;
mod profiles;
mod requirements;
#[path = "../../uffd/tests/common/skipped.rs"]
mod skipped;
mod source;
mod specification;
mod steer;
mod tidy;

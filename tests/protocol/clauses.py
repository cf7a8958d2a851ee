"""The normative statements of the protocol's documents, and the tests that prove them.

A row: the document, the heading under which the statement stands, what it says in our
words, and the test that fails where it does not hold. "reference" is spec/000,
"older reference" spec/001, which differs from it under StepRequest only, "overview"
spec/003.
"""

from __future__ import annotations

from typing import NamedTuple


class Clause(NamedTuple):
    document: str
    heading: str
    statement: str
    test: str
    """`path/below/tests::function`."""


ADAPTOR = "environment/test_dm_env_adaptor"
IDLE = "server/test_idle_worlds"
LOG = "server/test_error_log"
LIFECYCLE = "protocol/test_lifecycle"
MACHINE = "protocol/test_state_machine"
MESSAGES = "protocol/test_envelopes"
PEER = "environment/foreign/test_reference_peer"
PROPERTIES = "extensions/test_properties"
SCRIPTED = "environment/test_adaptor_of_scripts"
SERVER = "server/test_server"
SHARED = "server/test_shared_world"
SPECS = "tensors/test_specs"
SPEC_MANAGER = "tensors/test_spec_manager"
TENSORS = "tensors/test_packing"
WORLDS = "environment/test_worlds"
ANSWERS = "reliability/hostile/test_answers"
ENVIRONMENTS = "server/test_environments"
JOINING = "reliability/connections/test_joining"
LOST = "reliability/connections/test_lost_peers"
SLOTS = "reliability/connections/test_server_slots"

_TABLE: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("overview", "introduction"): [
        ("there is one method, Process, a stream both ways",
         "client/test_connect::test_stubs_and_servers_of_both_packages_go_together"),
        ("a server decides how many clients it supports",
         f"{SLOTS}::test_row_26_one_client_too_many"),
        ("each client may have a world of its own",
         "server/test_threads::test_others_go_on_while_a_step_does_not_end"),
        ("clients may share one world",
         f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs"),
        ("every request has exactly one answer", f"{MACHINE}::TestPipelinedRequests"),
        ("more answers than requests are a fault",
         f"{ANSWERS}::test_a_duplicate_answer_is_noticed_before_the_next_request_is_sent"),
        ("a request without an answer is noticed",
         f"{LOST}::test_what_happens_to_one_request_is_told_to_all"),
        ("the answer has the payload of the request's name, or error",
         f"{MESSAGES}::test_an_answer_comes_out_of_its_field"),
        ("another payload is a fault",
         f"{MESSAGES}::test_the_answer_to_another_request_is_a_protocol_error"),
        ("no payload is a fault", f"{MESSAGES}::test_an_empty_answer_is_a_protocol_error"),
    ],
    ("overview", "Streaming"): [
        ("requests may be sent without waiting for answers",
         f"{ANSWERS}::test_pipelined_requests_get_their_own_answers_errors_among_them"),
        ("requests are processed in the order in which they are sent",
         f"{ADAPTOR}::test_steps_that_are_not_waited_for_arrive_in_order"),
        ("answers come in the order of the requests",
         f"{ANSWERS}::test_gathered_requests_get_their_own_answers"),
        ("a request has to be valid when it is processed, not when it is sent",
         f"{MACHINE}::TestPipelinedRequests"),
    ],
    ("overview", "States"): [
        ("a connection is joined to a world or it is not",
         f"{LIFECYCLE}::test_a_connection_is_followed_from_joining_to_leaving"),
        ("Step and Reset are refused while it is not",
         f"{SERVER}::test_a_refusal_says_what_is_wrong"),
        ("a joined one is RUNNING, TERMINATED or INTERRUPTED",
         f"{LIFECYCLE}::test_states_have_the_numbers_of_the_protocol"),
        ("another state is a fault",
         f"{ANSWERS}::test_row_18_states_that_the_protocol_does_not_allow_are_told"),
        ("Step, Reset and ResetWorld lead from one to another",
         f"{LIFECYCLE}::test_where_a_request_leads"),
        ("to which of them is the environment's choice among those allowed",
         f"{LIFECYCLE}::test_advancing_follows_the_table"),
    ],
    ("overview", "Tensors"): [
        ("a tensor is an array of one data type", f"{TENSORS}::test_an_array_and_its_message"),
        ("no dimensions are a scalar", f"{TENSORS}::test_a_scalar_and_its_message"),
        ("there may be many dimensions", f"{TENSORS}::test_the_elements_settle_the_shape"),
        ("rows have the same length", "tensors/test_casting::test_what_is_no_array_is_refused"),
        ("elements travel in row-major order",
         f"{TENSORS}::test_elements_travel_row_major_from_every_layout"),
        ("the shape is the number of elements along each dimension",
         f"{TENSORS}::test_elements_that_do_not_fit_are_refused"),
    ],
    ("overview", "Variable lengths"): [
        ("a negative dimension is variable; its length follows from the elements",
         f"{TENSORS}::test_the_elements_settle_the_shape"),
        ("the client infers it", f"{SPEC_MANAGER}::test_a_tensor_of_the_specs_shape_is_unpacked"),
        ("the server infers it",
         f"{SERVER}::test_an_action_may_leave_a_length_open_or_be_one_element_for_all"),
        ("elements that fill no length are refused",
         f"{TENSORS}::test_elements_that_do_not_fit_are_refused"),
        ("a variable dimension takes every length",
         f"{SPEC_MANAGER}::test_a_variable_dimension_takes_every_length"),
        ("at most one dimension of a tensor is variable",
         f"{TENSORS}::test_elements_that_do_not_fit_are_refused"),
        ("at most one dimension of a spec is variable",
         f"{SPEC_MANAGER}::test_specs_that_cannot_be_are_refused_at_once"),
    ],
    ("overview", "Broadcastable"): [
        ("one element stands for all", f"{TENSORS}::test_the_elements_settle_the_shape"),
        ("equal elements may be sent as one",
         "tensors/test_packing::test_only_elements_that_are_the_same_are_sent_as_one"),
        ("the client unpacks it", f"{SPEC_MANAGER}::test_a_tensor_of_the_specs_shape_is_unpacked"),
        ("the server unpacks it",
         f"{SERVER}::test_an_action_may_leave_a_length_open_or_be_one_element_for_all"),
    ],
    ("overview", "TensorSpec"): [
        ("a spec has a name, a data type and a shape", f"{SPECS}::test_a_message_and_its_spec"),
        ("names are unique among actions, and among observations",
         f"{SPEC_MANAGER}::test_specs_that_cannot_be_are_refused_at_once"),
        ("a period in a name is a level of nesting",
         f"{ADAPTOR}::test_flat_names_are_taken_and_given_when_asked_for"),
    ],
    ("overview", "Ranges"): [
        ("numeric tensors may have a minimum and a maximum",
         f"{SPECS}::test_bounds_that_are_set_are_read"),
        ("other tensors have none", f"{SPECS}::test_only_numbers_have_bounds"),
        ("ranges are inclusive",
         f"{SPEC_MANAGER}::test_exactly_the_values_within_the_bounds_are_packed"),
        ("a scalar range is for all elements", f"{SPECS}::test_bounds_that_are_set_are_read"),
        ("otherwise it has the shape of the spec",
         f"{SPECS}::test_bounds_that_cannot_be_leave_the_spec_as_it_was"),
        ("each element has its own then", f"{SPEC_MANAGER}::test_range_and_finiteness_are_checked"),
        ("a variable shape takes scalar ranges only",
         f"{SPECS}::test_bounds_that_cannot_be_leave_the_spec_as_it_was"),
        ("clients check the range of what they send",
         "mistakes/test_actions::test_of_one_environment"),
        ("servers answer actions out of range with an error",
         f"{SERVER}::test_an_action_that_does_not_conform_is_refused_and_changes_nothing"),
    ],
    ("overview", "UIDs"): [
        ("actions and observations are keyed by UIDs of 64 bits",
         f"{SPEC_MANAGER}::test_names_and_uids_are_in_the_order_of_the_uids"),
        ("settings are keyed by name",
         f"{WORLDS}::test_settings_are_nested_or_flat_values_or_tensors"),
    ],
    ("overview", "Errors"): [
        ("a request that fails has an error Status for an answer",
         f"{ANSWERS}::test_pipelined_requests_get_their_own_answers_errors_among_them"),
        ("its code is the server's to choose", f"{SERVER}::test_a_refusal_says_what_is_wrong"),
        ("for a fatal error the server may end the stream",
         f"{LOST}::test_what_happens_to_one_request_is_told_to_all"),
        ("a request that failed otherwise has changed nothing",
         f"{SERVER}::test_an_action_that_does_not_conform_is_refused_and_changes_nothing"),
        ("it may be sent again",
         f"{ENVIRONMENTS}::test_a_step_whose_observations_cannot_be_sent_confuses_no_sequence"),
        ("a client that cannot go on closes the connection, gracefully if it can",
         f"{LOST}::test_close_fails_what_is_in_flight_though_the_server_never_ends_the_stream"),
        ("errors tell as much as the server knows",
         f"{LOG}::test_tracebacks_are_sent_to_clients_on_this_machine_unless_told_otherwise"),
        ("and what to do about it", f"{SERVER}::test_several_environments_are_picked_by_a_setting"),
    ],
    ("overview", "Nested actions or observations"): [
        ("servers flatten nested structures with periods",
         "server/structures/test_structures::test_flat_names"),
        ("clients rebuild them", "travelling/test_table::test_the_same_as_in_process"),
        ("periods mean nothing else in a name",
         f"{JOINING}::test_row_17_a_failure_on_the_way_leaves_nothing_on_the_server"),
        ("a name is no level and a tensor at once",
         "tensors/test_nesting::test_a_leaf_is_no_parent"),
        ("a message of one's own may be the payload of a tensor",
         f"{TENSORS}::test_protos_and_their_message"),
    ],
    ("overview", "Reward and discount"): [
        ("they are the observations reward and discount",
         "server/test_discounts::test_what_overrides_is_sent"),
        ("the adaptor puts them where dm_env has them",
         "travelling/test_table::test_the_same_as_in_process"),
        ("a server need not have them",
         f"{SCRIPTED}::test_without_reward_and_discount_there_are_defaults"),
    ],
    ("overview", "Multiagent support"): [
        ("several connections may join one world",
         f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs"),
        ("each has specs and observations of its own",
         f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs"),
    ],
    ("reference", "CreateWorldRequest/Response"): [
        ("a world is created with settings",
         f"{WORLDS}::test_settings_are_nested_or_flat_values_or_tensors"),
        ("settings that are missing or wrong are an error",
         f"{JOINING}::test_row_17_a_failure_on_the_way_leaves_nothing_on_the_server"),
        ("one request is enough for all agents of a world",
         f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs"),
        ("another connection may join what one created",
         f"{SHARED}::test_reset_world_waits_until_all_others_have_heard"),
        ("the name in the answer is unique",
         "server/test_kinds_of_worlds::test_a_world_is_used_by_any_client"),
        ("a server with one world may leave the name empty and refuse to create more",
         f"{IDLE}::test_the_only_world_of_a_server_has_no_name_and_never_ends"),
        ("a server may have a world that nobody creates",
         f"{IDLE}::test_the_only_world_of_a_server_has_no_name_and_never_ends"),
    ],
    ("reference", "Multiple world support"): [
        ("a server may have several worlds",
         "server/test_threads::test_others_go_on_while_a_step_does_not_end"),
        ("or one only", f"{IDLE}::test_the_only_world_of_a_server_has_no_name_and_never_ends"),
        ("worlds are independent of each other",
         "server/test_threads::test_others_go_on_while_a_step_does_not_end"),
    ],
    ("reference", "JoinWorldRequest/Response"): [
        ("joining makes a connection an agent, which may Step and Reset",
         f"{MACHINE}::TestPipelinedRequests"),
        ("agents have settings of their own",
         f"{SHARED}::test_there_are_as_many_places_as_there_are"),
        ("a world takes as many agents as it expects",
         "server/test_kinds_of_worlds::test_a_world_is_used_by_any_client"),
        ("the server may hold a Step back until others have joined",
         f"{SHARED}::test_who_is_missing_is_told_after_a_while"),
        ("the world to join is named", f"{SERVER}::test_a_refusal_says_what_is_wrong"),
        ("a connection joins one world at a time", f"{SERVER}::test_a_refusal_says_what_is_wrong"),
        ("several agents take several connections",
         f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs"),
    ],
    ("reference", "Specs"): [
        ("the answer to JoinWorld has all actions and observations",
         "server/test_discounts::test_what_overrides_is_sent"),
        ("they hold until the agent leaves or resets",
         f"{SERVER}::test_a_reset_from_outside_cannot_change_the_specs_of_an_agent"),
        ("a sparse set of observations may be requested",
         f"{SERVER}::test_only_what_is_requested_is_observed"),
        ("a sparse set of actions may be sent",
         f"{SPEC_MANAGER}::test_some_of_the_actions_may_be_left_out"),
        ("UIDs need not be consecutive nor the same twice",
         f"{ANSWERS}::test_row_19_a_reset_that_changes_the_specs_is_adopted"),
        ("names are unique in their group",
         f"{SPEC_MANAGER}::test_specs_that_cannot_be_are_refused_at_once"),
        ("both sides map UIDs back to names", f"{SPEC_MANAGER}::test_what_is_packed_is_unpacked"),
    ],
    ("reference", "StepRequest/Response"): [
        ("actions mean nothing where the state is not RUNNING",
         f"{SERVER}::test_what_means_nothing_does_nothing"),
        ("without requested observations none are returned",
         f"{SERVER}::test_only_what_is_requested_is_observed"),
        ("an observation has the type and the dimensions of its spec",
         f"{SCRIPTED}::test_an_observation_that_breaks_its_spec_is_told_by_its_path"),
        ("the server keeps to that too",
         "mistakes/test_environments::test_what_an_environment_does_wrong"),
        ("a step from a state that is not RUNNING begins the next sequence",
         f"{MACHINE}::TestPipelinedRequests"),
        ("it returns the observations requested",
         f"{ADAPTOR}::test_unroll_equals_the_stacked_steps_of_a_rollout"),
        ("requests sent together are processed in order across sequences",
         f"{ADAPTOR}::test_unroll_equals_the_stacked_steps_of_a_rollout"),
        ("no Reset is needed between two sequences",
         f"{ADAPTOR}::test_unroll_equals_the_stacked_steps_of_a_rollout"),
        ("a set of actions may be empty", f"{ADAPTOR}::test_catch_plays_with_sparse_actions"),
        ("an action that is not optional and is missing is an error",
         f"{ADAPTOR}::test_a_step_without_its_actions_is_the_servers_to_refuse"),
    ],
    ("older reference", "StepRequest/Response"): [
        ("any number of Steps may be sent without waiting, across sequences",
         f"{ADAPTOR}::test_unroll_equals_the_stacked_steps_of_a_rollout"),
        ("random actions gather data for offline learning that way",
         f"{ADAPTOR}::test_unroll_equals_the_stacked_steps_of_a_rollout"),
        ("an agent may never send a Reset",
         f"{ADAPTOR}::test_unroll_equals_the_stacked_steps_of_a_rollout"),
    ],
    ("reference", "Time"): [
        ("what a step is in time is the environment's to say",
         f"{SHARED}::test_out_of_lock_step_nobody_waits"),
        ("a Step may block until others have stepped",
         f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs"),
    ],
    ("reference", "ResetRequest/Response"): [
        ("settings apply from the next sequence on",
         f"{SCRIPTED}::test_reset_settings_rebuild_the_environment_with_new_specs"),
        ("Reset is for the agent that sends it alone",
         f"{SHARED}::test_a_reset_of_ones_own_does_not_touch_the_others"),
        ("the state is INTERRUPTED after it", f"{LIFECYCLE}::test_where_a_request_leads"),
        ("the actions of the next step mean nothing, and the state is RUNNING then",
         f"{MACHINE}::TestPipelinedRequests"),
        ("it may be sent between sequences, to change settings",
         f"{SERVER}::test_reset_sends_the_specs_whether_they_changed_or_not"),
        ("without settings it does nothing then",
         f"{LIFECYCLE}::test_where_a_request_leads"),
        ("settings may change the specs",
         f"{ANSWERS}::test_row_19_a_reset_that_changes_the_specs_is_adopted"),
        ("the specs are sent whether they changed or not",
         f"{SERVER}::test_reset_sends_the_specs_whether_they_changed_or_not"),
    ],
    ("reference", "ResetWorldRequest/Response"): [
        ("every agent of the world begins a new sequence",
         f"{SHARED}::test_reset_world_waits_until_all_others_have_heard"),
        ("with settings, where there are any",
         f"{SHARED}::test_settings_of_a_reset_apply_from_the_next_sequence_on"),
        ("the answer waits until the others had an INTERRUPTED step",
         f"{SHARED}::test_reset_world_with_four_agents_some_of_which_vanish"),
        ("they get the observations that they requested with it",
         f"{SHARED}::test_reset_world_waits_until_all_others_have_heard"),
        ("after it nobody is RUNNING",
         f"{SHARED}::test_reset_world_with_four_agents_some_of_which_vanish"),
        ("the caller is not told by a step, and begins at once",
         f"{SHARED}::test_reset_world_with_four_agents_some_of_which_vanish"),
        ("it may come from a connection that has not joined",
         "server/test_kinds_of_worlds::test_a_world_is_used_by_any_client"),
        ("each agent may decide to reset, also at once",
         f"{SHARED}::test_two_resets_at_once_do_not_wait_for_each_other"),
        ("a world that does not exist is an error", f"{SERVER}::test_a_refusal_says_what_is_wrong"),
    ],
    ("reference", "LeaveWorldRequest/Response"): [
        ("the connection is not joined afterwards", f"{MACHINE}::TestPipelinedRequests"),
        ("the world may wait for another agent", f"{SERVER}::test_a_refusal_says_what_is_wrong"),
        ("or go on without it", f"{SHARED}::test_the_others_go_on_without_one_that_leaves"),
        ("or end its sequence", f"{SHARED}::test_with_too_few_left_the_sequence_is_interrupted"),
        ("leaving without having joined does nothing",
         f"{SERVER}::test_what_means_nothing_does_nothing"),
    ],
    ("reference", "DestroyWorldRequest/Response"): [
        ("a world is destroyed by its name",
         "server/test_kinds_of_worlds::test_a_world_is_used_by_any_client"),
        ("from any connection", f"{SHARED}::test_reset_world_waits_until_all_others_have_heard"),
        ("what becomes of its agents is the world's choice; here it is refused",
         "server/test_kinds_of_worlds::test_a_world_is_used_by_any_client"),
        ("from a connection that is joined to it, it is an error",
         "server/test_kinds_of_worlds::test_a_world_is_used_by_any_client"),
    ],
    ("reference", "Read/Write/List Property"): [
        ("properties are read by several keys at once",
         f"{PROPERTIES}::test_legacy_properties_are_read_written_and_listed"),
        ("and written", f"{PROPERTIES}::test_legacy_properties_are_read_written_and_listed"),
        ("and listed; the empty key is the root",
         f"{PROPERTIES}::test_legacy_properties_are_read_written_and_listed"),
        ("under the numbers of the core protocol",
         f"{PROPERTIES}::test_legacy_properties_travel_under_the_tags_of_the_line"),
        ("today they are an extension",
         f"{PROPERTIES}::test_the_references_extension_reads_them_too"),
        ("before a join they are universal",
         f"{PROPERTIES}::test_universal_properties_are_there_before_a_join"),
        ("after it the world adds its own", f"{PROPERTIES}::test_a_world_adds_its_own_once_joined"),
        ("what is written, and when, is the world's to decide",
         f"{PROPERTIES}::test_writes_that_cannot_be"),
        ("they are a tree of listable nodes with unique keys",
         f"{PROPERTIES}::test_the_whole_tree_can_be_walked"),
    ],
    ("reference", "Example Sequence Diagrams"): [
        ("connect, create, join and step",
         f"{PEER}::test_the_references_adaptor_drives_our_server_in_one_process"),
        ("one sequence after another", f"{MACHINE}::TestPipelinedRequests"),
        ("leave and destroy", f"{ADAPTOR}::test_a_closed_environment_says_so"),
    ],
}  # fmt: skip

CLAUSES = [
    Clause(document, heading, statement, test)
    for (document, heading), rows in _TABLE.items()
    for statement, test in rows
]

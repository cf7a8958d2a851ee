"""The normative statements of the protocol's documents, and the tests that prove them.

By the document and the heading under which the statements stand: a test, and what it proves, in our
words; it fails where one of these does not hold. "reference" is spec/000, "older reference"
spec/001, which differs from it under StepRequest only, "overview" spec/003.
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
WORLDS = "environment/test_dm_env_adaptor"
ANSWERS = "reliability/hostile/test_answers"
ENVIRONMENTS = "server/test_environments"
JOINING = "reliability/connections/test_joining"
LOST = "reliability/connections/test_lost_peers"
SILENT = "reliability/hostile/test_silent_clients"

_TABLE: dict[tuple[str, str], list[tuple[str, ...]]] = {
    ("overview", "introduction"): [
        ("client/test_connect::test_stubs_and_servers_of_both_packages_go_together",
         "there is one method, Process, a stream both ways"),
        (f"{SILENT}::test_row_40_idle_streams",
         "a server decides how many clients it supports"),
        ("server/test_threads::test_others_go_on_while_a_step_does_not_end",
         "each client may have a world of its own"),
        (f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs",
         "clients may share one world"),
        (f"{MACHINE}::TestPipelinedRequests", "every request has exactly one answer"),
        (f"{ANSWERS}::test_a_duplicate_answer_is_noticed_before_the_next_request_is_sent",
         "more answers than requests are a fault"),
        (f"{LOST}::test_what_happens_to_one_request_is_told_to_all",
         "a request without an answer is noticed"),
        (f"{MESSAGES}::test_an_answer_comes_out_of_its_field",
         "the answer has the payload of the request's name, or error"),
        (f"{MESSAGES}::test_the_answer_to_another_request_is_a_protocol_error",
         "another payload is a fault"),
        (f"{MESSAGES}::test_an_empty_answer_is_a_protocol_error", "no payload is a fault"),
    ],
    ("overview", "Streaming"): [
        (f"{ANSWERS}::test_pipelined_requests_get_their_own_answers_errors_among_them",
         "requests may be sent without waiting for answers"),
        (f"{ADAPTOR}::test_steps_that_are_not_waited_for_arrive_in_order",
         "requests are processed in the order in which they are sent"),
        (f"{ANSWERS}::test_gathered_requests_get_their_own_answers",
         "answers come in the order of the requests"),
        (f"{MACHINE}::TestPipelinedRequests",
         "a request has to be valid when it is processed, not when it is sent"),
    ],
    ("overview", "States"): [
        (f"{LIFECYCLE}::test_a_connection_is_followed_from_joining_to_leaving",
         "a connection is joined to a world or it is not"),
        (f"{SERVER}::test_a_refusal_says_what_is_wrong",
         "Step and Reset are refused while it is not"),
        (f"{LIFECYCLE}::test_states_have_the_numbers_of_the_protocol",
         "a joined one is RUNNING, TERMINATED or INTERRUPTED"),
        (f"{ANSWERS}::test_row_18_states_that_the_protocol_does_not_allow_are_told",
         "another state is a fault"),
        (f"{LIFECYCLE}::test_where_a_request_leads",
         "Step, Reset and ResetWorld lead from one to another"),
        (f"{LIFECYCLE}::test_advancing_follows_the_table",
         "to which of them is the environment's choice among those allowed"),
    ],
    ("overview", "Tensors"): [
        (f"{TENSORS}::test_an_array_and_its_message", "a tensor is an array of one data type"),
        (f"{TENSORS}::test_a_scalar_and_its_message", "no dimensions are a scalar"),
        (f"{TENSORS}::test_the_elements_settle_the_shape", "there may be many dimensions"),
        ("tensors/test_casting::test_what_is_no_array_is_refused", "rows have the same length"),
        (f"{TENSORS}::test_elements_travel_row_major_from_every_layout",
         "elements travel in row-major order"),
        (f"{TENSORS}::test_elements_that_do_not_fit_are_refused",
         "the shape is the number of elements along each dimension"),
    ],
    ("overview", "Variable lengths"): [
        (f"{TENSORS}::test_the_elements_settle_the_shape",
         "a negative dimension is variable; its length follows from the elements"),
        (f"{SPEC_MANAGER}::test_a_tensor_of_the_specs_shape_is_unpacked", "the client infers it"),
        (f"{SERVER}::test_an_action_may_leave_a_length_open_or_be_one_element_for_all",
         "the server infers it"),
        (f"{TENSORS}::test_elements_that_do_not_fit_are_refused",
         "elements that fill no length are refused",
         "at most one dimension of a tensor is variable"),
        (f"{SPEC_MANAGER}::test_a_variable_dimension_takes_every_length",
         "a variable dimension takes every length"),
        (f"{SPEC_MANAGER}::test_specs_that_cannot_be_are_refused_at_once",
         "at most one dimension of a spec is variable"),
    ],
    ("overview", "Broadcastable"): [
        (f"{TENSORS}::test_the_elements_settle_the_shape", "one element stands for all"),
        (f"{TENSORS}::test_only_elements_that_are_the_same_are_sent_as_one",
         "equal elements may be sent as one"),
        (f"{SPEC_MANAGER}::test_a_tensor_of_the_specs_shape_is_unpacked", "the client unpacks it"),
        (f"{SERVER}::test_an_action_may_leave_a_length_open_or_be_one_element_for_all",
         "the server unpacks it"),
    ],
    ("overview", "TensorSpec"): [
        (f"{SPECS}::test_a_message_and_its_spec", "a spec has a name, a data type and a shape"),
        (f"{SPEC_MANAGER}::test_specs_that_cannot_be_are_refused_at_once",
         "names are unique among actions, and among observations"),
        (f"{ADAPTOR}::test_flat_names_are_taken_and_given_when_asked_for",
         "a period in a name is a level of nesting"),
    ],
    ("overview", "Ranges"): [
        (f"{SPECS}::test_bounds_that_are_set_are_read",
         "numeric tensors may have a minimum and a maximum", "a scalar range is for all elements"),
        (f"{SPECS}::test_only_numbers_have_bounds", "other tensors have none"),
        (f"{SPEC_MANAGER}::test_exactly_the_values_within_the_bounds_are_packed",
         "ranges are inclusive"),
        (f"{SPECS}::test_bounds_that_cannot_be_leave_the_spec_as_it_was",
         "otherwise it has the shape of the spec", "a variable shape takes scalar ranges only"),
        (f"{SPEC_MANAGER}::test_range_and_finiteness_are_checked", "each element has its own then"),
        ("mistakes/test_actions::test_of_one_environment",
         "clients check the range of what they send"),
        (f"{SERVER}::test_an_action_that_does_not_conform_is_refused_and_changes_nothing",
         "servers answer actions out of range with an error"),
    ],
    ("overview", "UIDs"): [
        (f"{SPEC_MANAGER}::test_names_and_uids_are_in_the_order_of_the_uids",
         "actions and observations are keyed by UIDs of 64 bits"),
        (f"{WORLDS}::test_settings_are_nested_or_flat_values_or_tensors",
         "settings are keyed by name"),
    ],
    ("overview", "Errors"): [
        (f"{ANSWERS}::test_pipelined_requests_get_their_own_answers_errors_among_them",
         "a request that fails has an error Status for an answer"),
        (f"{SERVER}::test_a_refusal_says_what_is_wrong", "its code is the server's to choose"),
        (f"{LOST}::test_what_happens_to_one_request_is_told_to_all",
         "for a fatal error the server may end the stream"),
        (f"{SERVER}::test_an_action_that_does_not_conform_is_refused_and_changes_nothing",
         "a request that failed otherwise has changed nothing"),
        (f"{ENVIRONMENTS}::test_a_step_whose_observations_cannot_be_sent_confuses_no_sequence",
         "it may be sent again"),
        (f"{LOST}::test_close_fails_what_is_in_flight_though_the_server_never_ends_the_stream",
         "a client that cannot go on closes the connection, gracefully if it can"),
        (f"{LOG}::test_tracebacks_are_sent_to_clients_on_this_machine_unless_told_otherwise",
         "errors tell as much as the server knows"),
        (f"{SERVER}::test_several_environments_are_picked_by_a_setting", "and what to do about it"),
    ],
    ("overview", "Nested actions or observations"): [
        ("server/structures/test_structures::test_flat_names",
         "servers flatten nested structures with periods"),
        ("travelling/test_table::test_the_same_as_in_process", "clients rebuild them"),
        (f"{JOINING}::test_row_17_a_failure_on_the_way_leaves_nothing_on_the_server",
         "periods mean nothing else in a name"),
        ("tensors/test_nesting::test_a_leaf_is_no_parent",
         "a name is no level and a tensor at once"),
        (f"{TENSORS}::test_protos_and_their_message",
         "a message of one's own may be the payload of a tensor"),
    ],
    ("overview", "Reward and discount"): [
        ("server/test_discounts::test_what_overrides_is_sent",
         "they are the observations reward and discount"),
        ("travelling/test_table::test_the_same_as_in_process",
         "the adaptor puts them where dm_env has them"),
        (f"{SCRIPTED}::test_without_reward_and_discount_there_are_defaults",
         "a server need not have them"),
    ],
    ("overview", "Multiagent support"): [
        (f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs",
         "several connections may join one world", "each has specs and observations of its own"),
    ],
    ("reference", "CreateWorldRequest/Response"): [
        (f"{WORLDS}::test_settings_are_nested_or_flat_values_or_tensors",
         "a world is created with settings"),
        (f"{JOINING}::test_row_17_a_failure_on_the_way_leaves_nothing_on_the_server",
         "settings that are missing or wrong are an error"),
        (f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs",
         "one request is enough for all agents of a world"),
        (f"{SHARED}::test_reset_world_waits_until_all_others_have_heard",
         "another connection may join what one created"),
        ("server/test_kinds_of_worlds::test_a_world_is_used_by_any_client",
         "the name in the answer is unique"),
        (f"{IDLE}::test_the_only_world_of_a_server_has_no_name_and_never_ends",
         "a server with one world may leave the name empty and refuse to create more",
         "a server may have a world that nobody creates"),
    ],
    ("reference", "Multiple world support"): [
        ("server/test_threads::test_others_go_on_while_a_step_does_not_end",
         "a server may have several worlds", "worlds are independent of each other"),
        (f"{IDLE}::test_the_only_world_of_a_server_has_no_name_and_never_ends", "or one only"),
    ],
    ("reference", "JoinWorldRequest/Response"): [
        (f"{MACHINE}::TestPipelinedRequests",
         "joining makes a connection an agent, which may Step and Reset"),
        (f"{SHARED}::test_there_are_as_many_places_as_there_are",
         "agents have settings of their own"),
        ("server/test_kinds_of_worlds::test_a_world_is_used_by_any_client",
         "a world takes as many agents as it expects"),
        (f"{SHARED}::test_who_is_missing_is_told_after_a_while",
         "the server may hold a Step back until others have joined"),
        (f"{SERVER}::test_a_refusal_says_what_is_wrong",
         "the world to join is named", "a connection joins one world at a time"),
        (f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs",
         "several agents take several connections"),
    ],
    ("reference", "Specs"): [
        ("server/test_discounts::test_what_overrides_is_sent",
         "the answer to JoinWorld has all actions and observations"),
        (f"{SERVER}::test_a_reset_from_outside_cannot_change_the_specs_of_an_agent",
         "they hold until the agent leaves or resets"),
        (f"{SERVER}::test_only_what_is_requested_is_observed",
         "a sparse set of observations may be requested"),
        (f"{SPEC_MANAGER}::test_some_of_the_actions_may_be_left_out",
         "a sparse set of actions may be sent"),
        (f"{ANSWERS}::test_row_19_a_reset_that_changes_the_specs_is_adopted",
         "UIDs need not be consecutive nor the same twice"),
        (f"{SPEC_MANAGER}::test_specs_that_cannot_be_are_refused_at_once",
         "names are unique in their group"),
        (f"{SPEC_MANAGER}::test_what_is_packed_is_unpacked", "both sides map UIDs back to names"),
    ],
    ("reference", "StepRequest/Response"): [
        (f"{SERVER}::test_what_means_nothing_does_nothing",
         "actions mean nothing where the state is not RUNNING"),
        (f"{SERVER}::test_only_what_is_requested_is_observed",
         "without requested observations none are returned"),
        (f"{SCRIPTED}::test_an_observation_that_breaks_its_spec_is_told_by_its_path",
         "an observation has the type and the dimensions of its spec"),
        ("mistakes/test_environments::test_what_an_environment_does_wrong",
         "the server keeps to that too"),
        (f"{MACHINE}::TestPipelinedRequests",
         "a step from a state that is not RUNNING begins the next sequence"),
        (f"{ADAPTOR}::test_unroll_equals_the_stacked_steps_of_a_rollout",
         "it returns the observations requested",
         "requests sent together are processed in order across sequences",
         "no Reset is needed between two sequences"),
        (f"{ADAPTOR}::test_catch_plays_with_sparse_actions", "a set of actions may be empty"),
        (f"{ADAPTOR}::test_a_step_without_its_actions_is_the_servers_to_refuse",
         "an action that is not optional and is missing is an error"),
    ],
    ("older reference", "StepRequest/Response"): [
        (f"{ADAPTOR}::test_unroll_equals_the_stacked_steps_of_a_rollout",
         "any number of Steps may be sent without waiting, across sequences",
         "random actions gather data for offline learning that way",
         "an agent may never send a Reset"),
    ],
    ("reference", "Time"): [
        (f"{SHARED}::test_out_of_lock_step_nobody_waits",
         "what a step is in time is the environment's to say"),
        (f"{SHARED}::test_a_step_is_taken_when_all_have_sent_theirs",
         "a Step may block until others have stepped"),
    ],
    ("reference", "ResetRequest/Response"): [
        (f"{SCRIPTED}::test_reset_settings_rebuild_the_environment_with_new_specs",
         "settings apply from the next sequence on"),
        (f"{SHARED}::test_a_reset_of_ones_own_does_not_touch_the_others",
         "Reset is for the agent that sends it alone"),
        (f"{LIFECYCLE}::test_where_a_request_leads",
         "the state is INTERRUPTED after it", "without settings it does nothing then"),
        (f"{MACHINE}::TestPipelinedRequests",
         "the actions of the next step mean nothing, and the state is RUNNING then"),
        (f"{SERVER}::test_reset_sends_the_specs_whether_they_changed_or_not",
         "it may be sent between sequences, to change settings",
         "the specs are sent whether they changed or not"),
        (f"{ANSWERS}::test_row_19_a_reset_that_changes_the_specs_is_adopted",
         "settings may change the specs"),
    ],
    ("reference", "ResetWorldRequest/Response"): [
        (f"{SHARED}::test_reset_world_waits_until_all_others_have_heard",
         "every agent of the world begins a new sequence",
         "they get the observations that they requested with it"),
        (f"{SHARED}::test_settings_of_a_reset_apply_from_the_next_sequence_on",
         "with settings, where there are any"),
        (f"{SHARED}::test_reset_world_with_four_agents_some_of_which_vanish",
         "the answer waits until the others had an INTERRUPTED step", "after it nobody is RUNNING",
         "the caller is not told by a step, and begins at once"),
        ("server/test_kinds_of_worlds::test_a_world_is_used_by_any_client",
         "it may come from a connection that has not joined"),
        (f"{SHARED}::test_two_resets_at_once_do_not_wait_for_each_other",
         "each agent may decide to reset, also at once"),
        (f"{SERVER}::test_a_refusal_says_what_is_wrong", "a world that does not exist is an error"),
    ],
    ("reference", "LeaveWorldRequest/Response"): [
        (f"{MACHINE}::TestPipelinedRequests", "the connection is not joined afterwards"),
        (f"{SERVER}::test_a_refusal_says_what_is_wrong", "the world may wait for another agent"),
        (f"{SHARED}::test_the_others_go_on_without_one_that_leaves", "or go on without it"),
        (f"{SHARED}::test_with_too_few_left_the_sequence_is_interrupted", "or end its sequence"),
        (f"{SERVER}::test_what_means_nothing_does_nothing",
         "leaving without having joined does nothing"),
    ],
    ("reference", "DestroyWorldRequest/Response"): [
        ("server/test_kinds_of_worlds::test_a_world_is_used_by_any_client",
         "a world is destroyed by its name",
         "what becomes of its agents is the world's choice; here it is refused",
         "from a connection that is joined to it, it is an error"),
        (f"{SHARED}::test_reset_world_waits_until_all_others_have_heard", "from any connection"),
    ],
    ("reference", "Read/Write/List Property"): [
        (f"{PROPERTIES}::test_legacy_properties_are_read_written_and_listed",
         "properties are read by several keys at once", "and written",
         "and listed; the empty key is the root"),
        (f"{PROPERTIES}::test_legacy_properties_travel_under_the_tags_of_the_line",
         "under the numbers of the core protocol"),
        (f"{PROPERTIES}::test_the_references_extension_reads_them_too",
         "today they are an extension"),
        (f"{PROPERTIES}::test_universal_properties_are_there_before_a_join",
         "before a join they are universal"),
        (f"{PROPERTIES}::test_a_world_adds_its_own_once_joined", "after it the world adds its own"),
        (f"{PROPERTIES}::test_writes_that_cannot_be",
         "what is written, and when, is the world's to decide"),
        (f"{PROPERTIES}::test_the_whole_tree_can_be_walked",
         "they are a tree of listable nodes with unique keys"),
    ],
    ("reference", "Example Sequence Diagrams"): [
        (f"{PEER}::test_the_references_adaptor_drives_our_server_in_one_process",
         "connect, create, join and step"),
        (f"{MACHINE}::TestPipelinedRequests", "one sequence after another"),
        (f"{ADAPTOR}::test_a_closed_environment_says_so", "leave and destroy"),
    ],
}  # fmt: skip

CLAUSES = [
    Clause(document, heading, statement, test)
    for (document, heading), rows in _TABLE.items()
    for test, *statements in rows
    for statement in statements
]

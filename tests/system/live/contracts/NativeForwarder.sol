// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Pays in native currency from inside a transaction, where neither `tx.to` nor `tx.value` names the payee.
contract NativeForwarder {
    function forward(address payable to) external payable {
        (bool ok,) = to.call{value: msg.value}("");
        require(ok, "refused");
    }

    /// @notice Always fails, so that a mined transaction with status 0 exists.
    function refuse() external payable {
        revert("refused on purpose");
    }
}
